// A small part of a UNet: two residual blocks (3 x 3 convolution, bias, SiLU) and self-attention over
// the 32 x 32 positions, 64 channels, f16 with f32 sums, NHWC.
#id4 = affine_map<(n, h, w, c) -> (n, h, w, c)>
#c4 = affine_map<(n, h, w, c) -> (c)>
#id3 = affine_map<(b, i, j) -> (b, i, j)>
#id2 = affine_map<(i, j) -> (i, j)>
module @unet_like {
  func.func private @residual(%x: tensor<2x32x32x64xf16>, %w: tensor<64x3x3x64xf16>, %bias: tensor<64xf16>)
      -> tensor<2x32x32x64xf16> {
    %zero16 = arith.constant 0.0 : f16
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %padded = tensor.pad %x low[0, 1, 1, 0] high[0, 1, 1, 0] {
    ^bb0(%a: index, %b: index, %c: index, %d: index):
      tensor.yield %zero16 : f16
    } : tensor<2x32x32x64xf16> to tensor<2x34x34x64xf16>
    %empty = tensor.empty() : tensor<2x32x32x64xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x32x32x64xf32>) -> tensor<2x32x32x64xf32>
    %sum = linalg.conv_2d_nhwc_fhwc {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}
        ins(%padded, %w : tensor<2x34x34x64xf16>, tensor<64x3x3x64xf16>)
        outs(%start : tensor<2x32x32x64xf32>) -> tensor<2x32x32x64xf32>
    %out = tensor.empty() : tensor<2x32x32x64xf16>
    // SiLU, scaled down so that the activations stay near 1 for random filters.
    %scale = arith.constant 0.05 : f32
    %y = linalg.generic {indexing_maps = [#id4, #c4, #id4, #id4],
                         iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%sum, %bias, %x : tensor<2x32x32x64xf32>, tensor<64xf16>, tensor<2x32x32x64xf16>)
        outs(%out : tensor<2x32x32x64xf16>) {
    ^bb0(%s: f32, %b: f16, %before: f16, %o: f16):
      %wide = arith.extf %b : f16 to f32
      %scaled = arith.mulf %s, %scale : f32
      %t = arith.addf %scaled, %wide : f32
      %negative = arith.negf %t : f32
      %e = math.exp %negative : f32
      %below = arith.addf %e, %one : f32
      %silu = arith.divf %t, %below : f32
      %kept = arith.extf %before : f16 to f32
      %r = arith.addf %silu, %kept : f32
      %short = arith.truncf %r : f32 to f16
      linalg.yield %short : f16
    } -> tensor<2x32x32x64xf16>
    return %y : tensor<2x32x32x64xf16>
  }

  func.func private @project(%x: tensor<2048x64xf16>, %w: tensor<64x64xf16>) -> tensor<2048x64xf16> {
    %zero = arith.constant 0.0 : f32
    %scale = arith.constant 0.125 : f32
    %empty = tensor.empty() : tensor<2048x64xf32>
    %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<2048x64xf32>) -> tensor<2048x64xf32>
    %m = linalg.matmul ins(%x, %w : tensor<2048x64xf16>, tensor<64x64xf16>)
        outs(%start : tensor<2048x64xf32>) -> tensor<2048x64xf32>
    %out = tensor.empty() : tensor<2048x64xf16>
    %y = linalg.generic {indexing_maps = [#id2, #id2], iterator_types = ["parallel", "parallel"]}
        ins(%m : tensor<2048x64xf32>) outs(%out : tensor<2048x64xf16>) {
    ^bb0(%s: f32, %o: f16):
      %t = arith.mulf %s, %scale : f32
      %r = arith.truncf %t : f32 to f16
      linalg.yield %r : f16
    } -> tensor<2048x64xf16>
    return %y : tensor<2048x64xf16>
  }

  func.func @forward(%x: tensor<2x32x32x64xf16>, %w1: tensor<64x3x3x64xf16>, %b1: tensor<64xf16>,
                     %w2: tensor<64x3x3x64xf16>, %b2: tensor<64xf16>,
                     %wq: tensor<64x64xf16>, %wo: tensor<64x64xf16>) -> tensor<2x32x32x64xf16> {
    %zero = arith.constant 0.0 : f32
    %r1 = call @residual(%x, %w1, %b1)
        : (tensor<2x32x32x64xf16>, tensor<64x3x3x64xf16>, tensor<64xf16>) -> tensor<2x32x32x64xf16>
    %r2 = call @residual(%r1, %w2, %b2)
        : (tensor<2x32x32x64xf16>, tensor<64x3x3x64xf16>, tensor<64xf16>) -> tensor<2x32x32x64xf16>
    %flat = tensor.collapse_shape %r2 [[0, 1, 2], [3]] : tensor<2x32x32x64xf16> into tensor<2048x64xf16>
    %q2 = call @project(%flat, %wq) : (tensor<2048x64xf16>, tensor<64x64xf16>) -> tensor<2048x64xf16>
    %q = tensor.expand_shape %q2 [[0, 1], [2]] output_shape [2, 1024, 64]
        : tensor<2048x64xf16> into tensor<2x1024x64xf16>
    %k = tensor.expand_shape %flat [[0, 1], [2]] output_shape [2, 1024, 64]
        : tensor<2048x64xf16> into tensor<2x1024x64xf16>
    %empty_scores = tensor.empty() : tensor<2x1024x1024xf32>
    %start_scores = linalg.fill ins(%zero : f32) outs(%empty_scores : tensor<2x1024x1024xf32>)
        -> tensor<2x1024x1024xf32>
    %scores = linalg.batch_matmul
        indexing_maps = [affine_map<(b, i, j, k) -> (b, i, k)>, affine_map<(b, i, j, k) -> (b, j, k)>,
                         affine_map<(b, i, j, k) -> (b, i, j)>]
        ins(%q, %k : tensor<2x1024x64xf16>, tensor<2x1024x64xf16>)
        outs(%start_scores : tensor<2x1024x1024xf32>) -> tensor<2x1024x1024xf32>
    %soft = linalg.softmax dimension(2) ins(%scores : tensor<2x1024x1024xf32>)
        outs(%empty_scores : tensor<2x1024x1024xf32>) -> tensor<2x1024x1024xf32>
    %empty_weights = tensor.empty() : tensor<2x1024x1024xf16>
    %weights = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
        ins(%soft : tensor<2x1024x1024xf32>) outs(%empty_weights : tensor<2x1024x1024xf16>) {
    ^bb0(%s: f32, %o: f16):
      %r = arith.truncf %s : f32 to f16
      linalg.yield %r : f16
    } -> tensor<2x1024x1024xf16>
    %empty_mixed = tensor.empty() : tensor<2x1024x64xf32>
    %start_mixed = linalg.fill ins(%zero : f32) outs(%empty_mixed : tensor<2x1024x64xf32>)
        -> tensor<2x1024x64xf32>
    %mixed = linalg.batch_matmul ins(%weights, %k : tensor<2x1024x1024xf16>, tensor<2x1024x64xf16>)
        outs(%start_mixed : tensor<2x1024x64xf32>) -> tensor<2x1024x64xf32>
    %empty_short = tensor.empty() : tensor<2x1024x64xf16>
    %short = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
        ins(%mixed : tensor<2x1024x64xf32>) outs(%empty_short : tensor<2x1024x64xf16>) {
    ^bb0(%s: f32, %o: f16):
      %r = arith.truncf %s : f32 to f16
      linalg.yield %r : f16
    } -> tensor<2x1024x64xf16>
    %rows = tensor.collapse_shape %short [[0, 1], [2]] : tensor<2x1024x64xf16> into tensor<2048x64xf16>
    %o2 = call @project(%rows, %wo) : (tensor<2048x64xf16>, tensor<64x64xf16>) -> tensor<2048x64xf16>
    %empty = tensor.empty() : tensor<2048x64xf16>
    %y = linalg.generic {indexing_maps = [#id2, #id2, #id2], iterator_types = ["parallel", "parallel"]}
        ins(%o2, %flat : tensor<2048x64xf16>, tensor<2048x64xf16>) outs(%empty : tensor<2048x64xf16>) {
    ^bb0(%a: f16, %b: f16, %o: f16):
      %r = arith.addf %a, %b : f16
      linalg.yield %r : f16
    } -> tensor<2048x64xf16>
    %image = tensor.expand_shape %y [[0, 1, 2], [3]] output_shape [2, 32, 32, 64]
        : tensor<2048x64xf16> into tensor<2x32x32x64xf16>
    return %image : tensor<2x32x32x64xf16>
  }
}
