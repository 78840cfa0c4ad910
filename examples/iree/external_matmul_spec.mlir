// A preprocessing spec: the matmul becomes a dispatch of external_matmul.o (see external_matmul.c).
//
// For x86-64. On aarch64 the target is "embedded-elf-arm_64" and the triple begins with aarch64. IREE
// links all executables of a module into one, which an executable with a target of its own does not
// take part in: compile with --iree-hal-link-executables=false.
#target = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {
  native_vector_size = 32 : i64, target_triple = "x86_64-unknown-unknown-eabi-elf"}>
#layout = #hal.pipeline.layout<bindings = [
  #hal.pipeline.binding<storage_buffer, ReadOnly>,
  #hal.pipeline.binding<storage_buffer, ReadOnly>,
  #hal.pipeline.binding<storage_buffer>]>
module attributes {transform.with_named_sequence} {
  hal.executable private @external {
    hal.executable.variant public @cpu target(#target)
        objects([#hal.executable.object<{path = "external_matmul.o"}>]) {
      hal.executable.export public @external_matmul ordinal(0) layout(#layout)
          count(%device: !hal.device) -> (index, index, index) {
        %rows = arith.constant 256 : index
        %one = arith.constant 1 : index
        hal.return %rows, %one, %one : index, index, index
      }
      builtin.module {
        func.func private @matmul_row(memref<256x128xf32>, memref<128x64xf32>, memref<256x64xf32>, index)
            attributes {hal.import.static}
        func.func @external_matmul() {
          %c0 = arith.constant 0 : index
          %row = hal.interface.workgroup.id[0] : index
          %a = hal.interface.binding.subspan layout(#layout) binding(0) alignment(64) offset(%c0)
              : memref<256x128xf32>
          %b = hal.interface.binding.subspan layout(#layout) binding(1) alignment(64) offset(%c0)
              : memref<128x64xf32>
          %c = hal.interface.binding.subspan layout(#layout) binding(2) alignment(64) offset(%c0)
              : memref<256x64xf32>
          func.call @matmul_row(%a, %b, %c, %row)
              : (memref<256x128xf32>, memref<128x64xf32>, memref<256x64xf32>, index) -> ()
          return
        }
      }
    }
  }

  util.func private @call_external(%a: tensor<256x128xf32>, %b: tensor<128x64xf32>, %start: tensor<256x64xf32>)
      -> tensor<256x64xf32> {
    %c = flow.dispatch @external::@cpu::@external_matmul(%a, %b)
        : (tensor<256x128xf32>, tensor<128x64xf32>) -> tensor<256x64xf32>
    util.return %c : tensor<256x64xf32>
  }

  transform.named_sequence @match_matmul(%op: !transform.any_op {transform.readonly}) -> !transform.any_op {
    transform.match.operation_name %op ["linalg.matmul"] : !transform.any_op
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
      transform.foreach_match in %func @match_matmul -> @call_kernel
          : (!transform.any_op) -> !transform.any_op
    }
    transform.apply_dce to %module : !transform.any_op
    transform.yield
  }
}
