// The top convolution of SDXL's UNet: 2 images of 34 x 34 x 1280, 3 x 3 filters, f16, NHWC.
module @sdxl_conv {
  func.func @forward(%x: tensor<2x34x34x1280xf16>, %w: tensor<1280x3x3x1280xf16>, %bias: tensor<1280xf16>)
      -> tensor<2x32x32x1280xf16> {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<2x32x32x1280xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x32x32x1280xf32>)
        -> tensor<2x32x32x1280xf32>
    %sum = linalg.conv_2d_nhwc_fhwc {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
        ins(%x, %w : tensor<2x34x34x1280xf16>, tensor<1280x3x3x1280xf16>)
        outs(%start : tensor<2x32x32x1280xf32>) -> tensor<2x32x32x1280xf32>
    %out = tensor.empty() : tensor<2x32x32x1280xf16>
    %y = linalg.generic {
        indexing_maps = [affine_map<(n, h, w, f) -> (n, h, w, f)>, affine_map<(n, h, w, f) -> (f)>,
                         affine_map<(n, h, w, f) -> (n, h, w, f)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%sum, %bias : tensor<2x32x32x1280xf32>, tensor<1280xf16>)
        outs(%out : tensor<2x32x32x1280xf16>) {
    ^bb0(%s: f32, %b: f16, %o: f16):
      %wide = arith.extf %b : f16 to f32
      %t = arith.addf %s, %wide : f32
      %r = arith.truncf %t : f32 to f16
      linalg.yield %r : f16
    } -> tensor<2x32x32x1280xf16>
    return %y : tensor<2x32x32x1280xf16>
  }
}
