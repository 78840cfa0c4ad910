// A matmul and a ReLU: the module into which external_matmul_spec.mlir puts a kernel of one's own.
module @external_matmul {
  func.func @forward(%a: tensor<256x128xf32>, %b: tensor<128x64xf32>) -> tensor<256x64xf32> {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<256x64xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<256x64xf32>) -> tensor<256x64xf32>
    %sum = linalg.matmul ins(%a, %b : tensor<256x128xf32>, tensor<128x64xf32>)
        outs(%start : tensor<256x64xf32>) -> tensor<256x64xf32>
    %y = linalg.generic {
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]}
        ins(%sum : tensor<256x64xf32>) outs(%empty : tensor<256x64xf32>) {
    ^bb0(%s: f32, %o: f32):
      %r = arith.maximumf %s, %zero : f32
      linalg.yield %r : f32
    } -> tensor<256x64xf32>
    return %y : tensor<256x64xf32>
  }
}
