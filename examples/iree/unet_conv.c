// A kernel of one's own for unet_conv_spec.mlir: one row of one channel of a 3 x 3 convolution a
// workgroup, in the order of torch (NCHW, FCHW). The input is padded; sums start from the bias.
//
//   cc -O3 -march=native -ffreestanding -fPIC -fno-tree-loop-distribute-patterns -c unet_conv.c
//
// external_matmul.c explains the flags, and why the function is hidden.
#include <stddef.h>

// How MLIR passes a memref of four dims.
#define MEMREF(type, name) \
  type *name##_base, type *name, size_t name##_offset, size_t name##_size0, size_t name##_size1, \
      size_t name##_size2, size_t name##_size3, size_t name##_stride0, size_t name##_stride1, \
      size_t name##_stride2, size_t name##_stride3

enum { COLUMNS = 16 };  // of the output: a constant, so that the sums stay in registers

__attribute__((visibility("hidden")))
void conv_row(MEMREF(const float, x), MEMREF(const float, w), MEMREF(const float, start),
              MEMREF(float, y), size_t row, size_t channel) {
  const float *first = start + start_offset + channel * start_stride1 + row * start_stride2;
  float sums[COLUMNS];
  for (size_t q = 0; q < COLUMNS; ++q) sums[q] = first[q];
  for (size_t c = 0; c < x_size1; ++c)
    for (size_t r = 0; r < 3; ++r) {
      const float *in = x + x_offset + c * x_stride1 + (row + r) * x_stride2;
      const float *taps = w + w_offset + channel * w_stride0 + c * w_stride1 + r * w_stride2;
      for (size_t s = 0; s < 3; ++s)
        for (size_t q = 0; q < COLUMNS; ++q) sums[q] += taps[s] * in[q + s];
    }
  float *out = y + y_offset + channel * y_stride1 + row * y_stride2;
  for (size_t q = 0; q < COLUMNS; ++q) out[q] = sums[q];
}
