// A kernel of one's own for external_matmul_spec.mlir: one row of C = A · B a workgroup.
//
//   cc -O2 -march=native -ffreestanding -fPIC -fno-tree-loop-distribute-patterns -c external_matmul.c
//
// The object is linked into an ELF file without a C library. The flags keep the compiler from calling
// memset and memcpy.
#include <stddef.h>

// How MLIR passes a memref of two dims.
#define MEMREF(type, name) \
  type *name##_base, type *name, size_t name##_offset, size_t name##_rows, size_t name##_columns, \
      size_t name##_row_stride, size_t name##_column_stride

// Hidden, so that the linker calls it directly: IREE's loader for aarch64 leaves the table that calls
// to visible functions go through as it is.
__attribute__((visibility("hidden")))
void matmul_row(MEMREF(const float, a), MEMREF(const float, b), MEMREF(float, c), size_t row) {
  const float *left = a + a_offset + row * a_row_stride;
  float *out = c + c_offset + row * c_row_stride;
  for (size_t j = 0; j < c_columns; ++j) out[j] = 0.0f;
  for (size_t k = 0; k < a_columns; ++k) {
    const float *right = b + b_offset + k * b_row_stride;
    for (size_t j = 0; j < c_columns; ++j) out[j] += left[k] * right[j];
  }
}
