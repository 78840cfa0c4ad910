// A preprocessing spec for unet_torch.py (its default sizes): the 3 x 3 convolutions from 64 to 32
// channels become dispatches of unet_conv.o (see unet_conv.c).
//
// For x86-64. On aarch64 the target is "embedded-elf-arm_64" and the triple begins with aarch64. IREE
// links all executables of a module into one, which an executable with a target of its own does not
// take part in: compile with --iree-hal-link-executables=false.
#target = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {
  native_vector_size = 32 : i64, target_triple = "x86_64-unknown-unknown-eabi-elf"}>
#layout = #hal.pipeline.layout<bindings = [
  #hal.pipeline.binding<storage_buffer, ReadOnly>,
  #hal.pipeline.binding<storage_buffer, ReadOnly>,
  #hal.pipeline.binding<storage_buffer, ReadOnly>,
  #hal.pipeline.binding<storage_buffer>]>
module attributes {transform.with_named_sequence} {
  hal.executable private @external {
    hal.executable.variant public @cpu target(#target)
        objects([#hal.executable.object<{path = "unet_conv.o"}>]) {
      hal.executable.export public @unet_conv ordinal(0) layout(#layout)
          count(%device: !hal.device) -> (index, index, index) {
        %rows = arith.constant 16 : index
        %channels = arith.constant 32 : index
        %one = arith.constant 1 : index
        hal.return %rows, %channels, %one : index, index, index
      }
      builtin.module {
        func.func private @conv_row(memref<1x64x18x18xf32>, memref<32x64x3x3xf32>, memref<1x32x16x16xf32>,
            memref<1x32x16x16xf32>, index, index) attributes {hal.import.static}
        func.func @unet_conv() {
          %c0 = arith.constant 0 : index
          %row = hal.interface.workgroup.id[0] : index
          %channel = hal.interface.workgroup.id[1] : index
          %x = hal.interface.binding.subspan layout(#layout) binding(0) alignment(64) offset(%c0)
              : memref<1x64x18x18xf32>
          %w = hal.interface.binding.subspan layout(#layout) binding(1) alignment(64) offset(%c0)
              : memref<32x64x3x3xf32>
          %start = hal.interface.binding.subspan layout(#layout) binding(2) alignment(64) offset(%c0)
              : memref<1x32x16x16xf32>
          %y = hal.interface.binding.subspan layout(#layout) binding(3) alignment(64) offset(%c0)
              : memref<1x32x16x16xf32>
          func.call @conv_row(%x, %w, %start, %y, %row, %channel)
              : (memref<1x64x18x18xf32>, memref<32x64x3x3xf32>, memref<1x32x16x16xf32>,
                 memref<1x32x16x16xf32>, index, index) -> ()
          return
        }
      }
    }
  }

  util.func private @call_external(%x: tensor<1x64x18x18xf32>, %w: tensor<32x64x3x3xf32>, %start: tensor<1x32x16x16xf32>)
      -> tensor<1x32x16x16xf32> {
    %y = flow.dispatch @external::@cpu::@unet_conv(%x, %w, %start)
        : (tensor<1x64x18x18xf32>, tensor<32x64x3x3xf32>, tensor<1x32x16x16xf32>) -> tensor<1x32x16x16xf32>
    util.return %y : tensor<1x32x16x16xf32>
  }

  transform.named_sequence @match_conv(%op: !transform.any_op {transform.readonly}) -> !transform.any_op {
    transform.match.operation_name %op ["linalg.conv_2d_nchw_fchw"] : !transform.any_op
    %x = transform.get_operand %op[0] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %x = tensor<1x64x18x18xf32> : !transform.any_value
    %w = transform.get_operand %op[1] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %w = tensor<32x64x3x3xf32> : !transform.any_value
    transform.yield %op : !transform.any_op
  }

  transform.named_sequence @call_kernel(%op: !transform.any_op {transform.readonly}) {
    %module = transform.util.get_nearest_symbol_table %op : (!transform.any_op) -> !transform.any_op
    transform.util.import_symbol @external into %module if undefined
        : (!transform.any_op) -> !transform.any_op
    %func = transform.util.import_symbol @call_external into %module if undefined
        : (!transform.any_op) -> !transform.any_op
    %ins = transform.get_operand %op[all] : (!transform.any_op) -> !transform.any_value
    %out = transform.get_result %op[all] : (!transform.any_op) -> !transform.any_value
    transform.util.cast_and_call %func(%ins) -> %out before %op
        : (!transform.any_op, !transform.any_value, !transform.any_value, !transform.any_op) -> !transform.any_op
    transform.yield
  }

  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %funcs = transform.structured.match ops{["util.func"]} in %module
        : (!transform.any_op) -> !transform.any_op
    transform.foreach %funcs : !transform.any_op {
    ^bb1(%func: !transform.any_op):
      transform.foreach_match in %func @match_conv -> @call_kernel
          : (!transform.any_op) -> !transform.any_op
    }
    transform.apply_dce to %module : !transform.any_op
    transform.yield
  }
}
