"""Names of the vendors' BLASLt headers, which differ between them in their prefix alone."""

TYPES = {
    "f32": "R_32F",
    "f64": "R_64F",
    "f16": "R_16F",
    "i8": "R_8I",
    "i32": "R_32I",
    "bf16": "R_16BF",
    "f8e4m3": "R_8F_E4M3",
    "f8e5m2": "R_8F_E5M2",
    "f4e2m1": "R_4F_E2M1",
    "f8e4m3fnuz": "R_8F_E4M3_FNUZ",
    "f8e5m2fnuz": "R_8F_E5M2_FNUZ",
}
DESC = {
    "transa": "TRANSA",
    "transb": "TRANSB",
    "epilogue": "EPILOGUE",
    "bias": "BIAS_POINTER",
    "bias_type": "BIAS_DATA_TYPE",
    "a_scale": "A_SCALE_POINTER",
    "b_scale": "B_SCALE_POINTER",
    "d_scale": "D_SCALE_POINTER",
    "a_scale_mode": "A_SCALE_MODE",
    "b_scale_mode": "B_SCALE_MODE",
}
