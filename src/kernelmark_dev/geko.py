"""Small files as GEKO writes them, for tests and drills."""

LIST = """---
# one type of GEMM
TRANSA: 'T'
TRANSB: 'N'
DataType: "B"
DestDataType: "B"
ComputeDataType: "S"
ARCH: "gfx950"
Sizes:
  - [ 512,   2304, 1,   7680]
  - [16, 32, 4, 128]
  - [16, 32, 4, 128]
"""
_CALL = (
    "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,beta,ldb,ldc,ldd,a_type,b_type,c_type,"
    "d_type,compute_type,scaleA,scaleB,activation_type,bias_vector,rotating_buffer"
)
_ROW = (
    "T,N,0,1,16032,109,16384,1,16384,0,16384,16032,16032,bf16_r,bf16_r,bf16_r,bf16_r,f32_r,0,0,none"
    ",0,512"
)
WINNERS = (
    f"{_CALL},hipblaslt-Gflops,hipblaslt-GB/s,us,kernel,solution,solutionIdx,lib_source\n"
    f"{_ROW},401500.5,3700.2,142.6,Cijk_old,Cijk_old_sol,3711,Equality\n"
)
RAW = (
    f"{_CALL},hipblaslt-Gflops_reference,us_reference,kernel_reference,solutionIdx_reference,"
    "hipblaslt-Gflops_tuned,us_tuned,kernel_tuned,solutionIdx_tuned,error_tuned,ratio,category,"
    "verified,valid\n"
    f"{_ROW},401500.5,142.6,Cijk_old,3711,477000.5,120.0,Cijk_new,0,0.00012,1.188,"
    '"Large M, very small N and K",True,True\n'
)
