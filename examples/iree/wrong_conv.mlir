// conv_as_matmul.mlir with a planted error: the filter's taps are read transposed.
//
// The channels are dynamic here, so that the spec fits any number of them.
module attributes {transform.with_named_sequence} {
  util.func private @conv_as_matmul(%x: tensor<2x34x34x?xf16>, %w: tensor<?x3x3x?xf16>, %acc: tensor<2x32x32x?xf32>)
      -> tensor<2x32x32x?xf32> {
    %c0 = arith.constant 0 : index
    %c3 = arith.constant 3 : index
    %c = tensor.dim %x, %c3 : tensor<2x34x34x?xf16>
    %f = tensor.dim %w, %c0 : tensor<?x3x3x?xf16>
    %e = tensor.empty(%c) : tensor<2x32x32x3x3x?xf16>
    %patches = linalg.generic {
        indexing_maps = [affine_map<(n, p, q, r, s, c) -> (n, p + s, q + r, c)>,
                         affine_map<(n, p, q, r, s, c) -> (n, p, q, r, s, c)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}
        ins(%x : tensor<2x34x34x?xf16>) outs(%e : tensor<2x32x32x3x3x?xf16>) {
    ^bb0(%in: f16, %o: f16):
      linalg.yield %in : f16
    } -> tensor<2x32x32x3x3x?xf16>
    %a = tensor.collapse_shape %patches [[0, 1, 2], [3, 4, 5]]
        : tensor<2x32x32x3x3x?xf16> into tensor<2048x?xf16>
    %b = tensor.collapse_shape %w [[0], [1, 2, 3]] : tensor<?x3x3x?xf16> into tensor<?x?xf16>
    %d = tensor.collapse_shape %acc [[0, 1, 2], [3]] : tensor<2x32x32x?xf32> into tensor<2048x?xf32>
    %m = linalg.matmul
        indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>,
                         affine_map<(i, j, k) -> (i, j)>]
        ins(%a, %b : tensor<2048x?xf16>, tensor<?x?xf16>) outs(%d : tensor<2048x?xf32>)
        -> tensor<2048x?xf32>
    %y = tensor.expand_shape %m [[0, 1, 2], [3]] output_shape [2, 32, 32, %f]
        : tensor<2048x?xf32> into tensor<2x32x32x?xf32>
    util.return %y : tensor<2x32x32x?xf32>
  }

  transform.named_sequence @match_conv(%conv: !transform.any_op {transform.readonly}) -> !transform.any_op {
    transform.match.operation_name %conv ["linalg.conv_2d_nhwc_fhwc"] : !transform.any_op
    %x = transform.get_operand %conv[0] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %x = tensor<2x34x34x?xf16> : !transform.any_value
    %w = transform.get_operand %conv[1] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %w = tensor<?x3x3x?xf16> : !transform.any_value
    transform.yield %conv : !transform.any_op
  }

  transform.named_sequence @call_matmul(%conv: !transform.any_op {transform.readonly}) {
    %module = transform.util.get_nearest_symbol_table %conv : (!transform.any_op) -> !transform.any_op
    %func = transform.util.import_symbol @conv_as_matmul into %module if undefined
        : (!transform.any_op) -> !transform.any_op
    %ins = transform.get_operand %conv[all] : (!transform.any_op) -> !transform.any_value
    %out = transform.get_result %conv[all] : (!transform.any_op) -> !transform.any_value
    transform.util.cast_and_call %func(%ins) -> %out before %conv {
      transform.type_conversion.tensor.cast_shape_dynamic_dims
    } : (!transform.any_op, !transform.any_value, !transform.any_value, !transform.any_op) -> !transform.any_op
    transform.yield
  }

  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %funcs = transform.structured.match ops{["util.func"]} in %module
        : (!transform.any_op) -> !transform.any_op
    transform.foreach %funcs : !transform.any_op {
    ^bb1(%func: !transform.any_op):
      transform.foreach_match in %func @match_conv -> @call_matmul
          : (!transform.any_op) -> !transform.any_op
    }
    transform.apply_dce to %module : !transform.any_op
    transform.apply_registered_pass "inline" to %module : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
