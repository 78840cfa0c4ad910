import sys

SOURCE = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_accum_offset 8
  .amdhsa_next_free_vgpr {registers}
  .amdhsa_next_free_sgpr 16
  .amdhsa_group_segment_fixed_size {lds}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version:
  - 1
  - 1
amdhsa.kernels:
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 8
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: {registers}
    .max_flat_workgroup_size: 256
...
.end_amdgpu_metadata
"""


class KernelWriterAssembly:
    def __init__(self, kernelMinNaming, kernelSerialNaming, assembler, amdClangVersion):
        assert amdClangVersion.major

    def setTensileInstructions(self, instructions):
        pass

    def _getKernelSource(self, kernel):
        rows, columns = kernel["MacroTile"]
        if rows * columns > 128 * 128:
            sys.stdout.write("overflowed resources\n")
            raise RuntimeError("Generating kernel source resulted in error 4")
        name = kernel.getNameMin(kernel, None, True)
        arch = "gfx{}{}{:x}".format(*kernel["ISA"])
        lds = (rows + columns) * kernel["DepthU"] * 2
        return SOURCE.format(arch=arch, name=name, registers=rows * columns // 256 + 16, lds=lds)
