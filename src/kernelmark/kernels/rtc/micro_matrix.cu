// The peak of the matrix units, one kernel a dtype: products are issued one after the other on
// operands that stay where they are. A kernel exists only where the GPU has the instruction.
//
// Operands are `pattern` in every word, with the bits in `mask` random: numbers like a real
// product's for the timed launch (what they toggle is what they draw), ones for the check.
// facts: flops a round of one block, sum of products in each result after one round of ones.

DEVICE u32 random_word(u32 i) {
  u32 x = i * 0x9e3779b9u + threadIdx.x * 0x85ebca6bu + 1u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
DEVICE u32 operand(u32 i, u32 pattern, u32 mask) { return pattern ^ (random_word(i) & mask); }
DEVICE void note_facts(u64* facts, u64 flops, u64 sum) {
  if (thread_number() == 0) {
    facts[0] = flops;
    facts[1] = sum;
  }
}

#if defined(NVIDIA) && __CUDA_ARCH__ >= 800

#define WARPS (blockDim.x / 32)
#define TILES 8

// Each warp multiplies the same two fragments into TILES sums that do not wait for each other.
#define WARP_PRODUCT(NAME, T, KIND, M, N, K, CODE)                                                \
  KERNEL BLOCK_OF(512)                                                                            \
  matrix_##NAME(u32 rounds, u32 pattern, u32 mask, u64* clocks, T* out, u64* facts) {             \
    u32 a[4], b[2];                                                                               \
    T d[TILES][4];                                                                                \
    for (u32 i = 0; i < 4; ++i) a[i] = operand(i, pattern, mask);                                 \
    for (u32 i = 0; i < 2; ++i) b[i] = operand(i + 4, pattern, mask);                             \
    for (u32 t = 0; t < TILES; ++t)                                                               \
      for (u32 i = 0; i < 4; ++i) d[t][i] = (T)0;                                                 \
    __shared__ u64 stamps[STAMPS];                                                                \
    const u64 begin = start_block();                                                              \
    _Pragma("unroll 1") for (u32 r = 0; r < rounds; ++r) {                                        \
      _Pragma("unroll") for (u32 s = 0; s < 4; ++s)                                               \
        _Pragma("unroll") for (u32 t = 0; t < TILES; ++t)                                         \
          asm volatile(CODE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"    \
                       : "+" KIND(d[t][0]), "+" KIND(d[t][1]), "+" KIND(d[t][2]),                 \
                         "+" KIND(d[t][3])                                                        \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));       \
    }                                                                                             \
    stop_block(clocks, begin, stamps);                                                            \
    T total = (T)0;                                                                               \
    for (u32 t = 0; t < TILES; ++t)                                                               \
      for (u32 i = 0; i < 4; ++i) total += d[t][i];                                               \
    out[thread_number()] = total / (T)(4 * TILES);                                                \
    note_facts(facts, (u64)WARPS * 4 * TILES * 2 * M * N * K, 4 * K);                             \
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Hopper's units are fed from shared memory, by four warps together: 64 x 256 results for each
// group of four warps. Two groups share the second operand.
#define GROUPS 2
#define PRODUCTS 16  // in one round, of each group
#define ROW_BYTES 128
#define REGISTERS \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

DEVICE u64 tile_descriptor(const void* tile) {
  // Rows of 128 bytes, swizzled over 128 bytes; eight rows are 1024 bytes apart from the next.
  const u64 address = (u64)__cvta_generic_to_shared(tile);
  return ((address & 0x3ffff) >> 4) | (1ull << 16) | ((1024ull >> 4) << 32) | (1ull << 62);
}

#define R2(C, i) C(d[i]), C(d[i + 1])
#define R8(C, i) R2(C, i), R2(C, i + 2), R2(C, i + 4), R2(C, i + 6)
#define R32(C, i) R8(C, i), R8(C, i + 8), R8(C, i + 16), R8(C, i + 24)
#define R128(C) R32(C, 0), R32(C, 32), R32(C, 64), R32(C, 96)

#define GROUP_PRODUCT(NAME, T, KIND, K, CODE, SCALES)                                             \
  KERNEL BLOCK_OF(GROUPS * 128)                                                                   \
  matrix_##NAME(u32 rounds, u32 pattern, u32 mask, u64* clocks, T* out, u64* facts) {             \
    __shared__ __align__(1024) u32 room[(GROUPS * 64 + 256) * ROW_BYTES / 4];                     \
    for (u32 i = threadIdx.x; i < sizeof(room) / 4; i += blockDim.x)                              \
      room[i] = operand(i, pattern, mask);                                                        \
    T d[128];                                                                                     \
    _Pragma("unroll") for (u32 i = 0; i < 128; ++i) d[i] = (T)0;                                  \
    const u64 a = tile_descriptor(room + threadIdx.x / 128 * 64 * ROW_BYTES / 4);                 \
    const u64 b = tile_descriptor(room + GROUPS * 64 * ROW_BYTES / 4);                            \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                  \
    const u64 begin = start_block();                                                              \
    _Pragma("unroll 1") for (u32 r = 0; r < rounds; ++r) {                                        \
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                     \
      _Pragma("unroll") for (u32 s = 0; s < PRODUCTS; ++s)                                        \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, 1, 0;\n\t"                             \
                     "wgmma.mma_async.sync.aligned." CODE " " REGISTERS                           \
                     ", %128, %129, p" SCALES ";\n\t}"                                            \
                     : R128("+" KIND)                                                             \
                     : "l"(a + s % 4 * 2), "l"(b + s % 4 * 2));                                   \
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                              \
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                              \
    }                                                                                             \
    stop_block(clocks, begin, (u64*)room);                                                        \
    T total = (T)0;                                                                               \
    _Pragma("unroll") for (u32 i = 0; i < 128; ++i) total += d[i];                                \
    out[thread_number()] = total / (T)128;                                                        \
    note_facts(facts, (u64)GROUPS * PRODUCTS * 2 * 64 * 256 * K, PRODUCTS * K);                   \
  }

GROUP_PRODUCT(bf16, float, "f", 16, "m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0")
GROUP_PRODUCT(f16, float, "f", 16, "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0")
GROUP_PRODUCT(tf32, float, "f", 8, "m64n256k8.f32.tf32.tf32", ", 1, 1")
GROUP_PRODUCT(f8e4m3, float, "f", 32, "m64n256k32.f32.e4m3.e4m3", ", 1, 1")
GROUP_PRODUCT(f8e5m2, float, "f", 32, "m64n256k32.f32.e5m2.e5m2", ", 1, 1")
GROUP_PRODUCT(i8, int, "r", 32, "m64n256k32.s32.s8.s8", "")

#else

#define MMA "mma.sync.aligned."
WARP_PRODUCT(bf16, float, "f", 16, 8, 16, MMA "m16n8k16.row.col.f32.bf16.bf16.f32")
WARP_PRODUCT(f16, float, "f", 16, 8, 16, MMA "m16n8k16.row.col.f32.f16.f16.f32")
WARP_PRODUCT(tf32, float, "f", 16, 8, 8, MMA "m16n8k8.row.col.f32.tf32.tf32.f32")
WARP_PRODUCT(i8, int, "r", 16, 8, 32, MMA "m16n8k32.row.col.s32.s8.s8.s32")
#if __CUDA_ARCH__ >= 890
WARP_PRODUCT(f8e4m3, float, "f", 16, 8, 32, MMA "m16n8k32.row.col.f32.e4m3.e4m3.f32")
WARP_PRODUCT(f8e5m2, float, "f", 16, 8, 32, MMA "m16n8k32.row.col.f32.e5m2.e5m2.f32")
#endif
#endif

// Double precision: fragments of whole doubles.
#if __CUDA_ARCH__ >= 900
#define F64_A 8
#define F64_B 4
#define F64_D 4
#define F64_TILES 4
#define F64_FLOPS (2 * 16 * 8 * 16)
#define F64_K 16
#define F64_PRODUCT(d, a, b)                                                                      \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "             \
               "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"      \
               : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])                                   \
               : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]),     \
                 "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]))
#else
#define F64_A 1
#define F64_B 1
#define F64_D 2
#define F64_TILES 8
#define F64_FLOPS (2 * 8 * 8 * 4)
#define F64_K 4
#define F64_PRODUCT(d, a, b)                                                                      \
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"  \
               : "+d"(d[0]), "+d"(d[1])                                                           \
               : "d"(a[0]), "d"(b[0]))
#endif
DEVICE double operand_f64(u32 i, u32 pattern, u32 mask) {
  return __hiloint2double((int)operand(i, pattern, mask), 0);
}
KERNEL BLOCK_OF(512)
matrix_f64(u32 rounds, u32 pattern, u32 mask, u64* clocks, double* out, u64* facts) {
  double a[F64_A], b[F64_B], d[F64_TILES][F64_D];
  for (u32 i = 0; i < F64_A; ++i) a[i] = operand_f64(i, pattern, mask);
  for (u32 i = 0; i < F64_B; ++i) b[i] = operand_f64(i + F64_A, pattern, mask);
  for (u32 t = 0; t < F64_TILES; ++t)
    for (u32 i = 0; i < F64_D; ++i) d[t][i] = 0.0;
  __shared__ u64 stamps[STAMPS];
  const u64 begin = start_block();
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) {
#pragma unroll
    for (u32 s = 0; s < 4; ++s)
#pragma unroll
      for (u32 t = 0; t < F64_TILES; ++t) F64_PRODUCT(d[t], a, b);
  }
  stop_block(clocks, begin, stamps);
  double total = 0.0;
  for (u32 t = 0; t < F64_TILES; ++t)
    for (u32 i = 0; i < F64_D; ++i) total += d[t][i];
  out[thread_number()] = total / (F64_TILES * F64_D);
  note_facts(facts, (u64)WARPS * 4 * F64_TILES * F64_FLOPS, 4 * F64_K);
}

#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
// Four bits, with one scale of 1 for every 32 elements.
KERNEL BLOCK_OF(512)
matrix_f4e2m1(u32 rounds, u32 pattern, u32 mask, u64* clocks, float* out, u64* facts) {
  u32 a[4], b[2];
  float d[TILES][4];
  const u32 one = 0x7f7f7f7fu;
  for (u32 i = 0; i < 4; ++i) a[i] = operand(i, pattern, mask);
  for (u32 i = 0; i < 2; ++i) b[i] = operand(i + 4, pattern, mask);
  for (u32 t = 0; t < TILES; ++t)
    for (u32 i = 0; i < 4; ++i) d[t][i] = 0.0f;
  __shared__ u64 stamps[STAMPS];
  const u64 begin = start_block();
#pragma unroll 1
  for (u32 r = 0; r < rounds; ++r) {
#pragma unroll
    for (u32 s = 0; s < 4; ++s)
#pragma unroll
      for (u32 t = 0; t < TILES; ++t)
        asm volatile(
            "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col"
            ".f32.e2m1.e2m1.f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3}, %10, {0, 0}, %10, {0, 0};"
            : "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(one));
  }
  stop_block(clocks, begin, stamps);
  float total = 0.0f;
  for (u32 t = 0; t < TILES; ++t)
    for (u32 i = 0; i < 4; ++i) total += d[t][i];
  out[thread_number()] = total / (4 * TILES);
  note_facts(facts, (u64)WARPS * 4 * TILES * 2 * 16 * 8 * 64, 4 * 64);
}
#endif

#elif defined(AMD)

typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef int i32x16 __attribute__((ext_vector_type(16)));
typedef double f64x4 __attribute__((ext_vector_type(4)));
typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef int i32x8 __attribute__((ext_vector_type(8)));

template <typename V>
DEVICE V filled(u32 first, u32 pattern, u32 mask) {
  union {
    V value;
    u32 words[sizeof(V) / 4];
  } made;
  for (u32 i = 0; i < sizeof(V) / 4; ++i) made.words[i] = operand(first + i, pattern, mask);
  return made.value;
}
// The high word of a double.
template <>
DEVICE double filled<double>(u32 first, u32 pattern, u32 mask) {
  union {
    double value;
    u32 words[2];
  } made;
  made.words[0] = 0;
  made.words[1] = operand(first, pattern, mask);
  return made.value;
}

// The word that begins `phase` bits into the endless repetition of the first 30 bits of `word`.
DEVICE u32 repeated(u32 word, u32 phase) {
  const u64 once = word & 0x3fffffffu;
  return (u32)((once | once << 30) >> phase);
}

// Each wave multiplies the same two operands into TILES sums that do not wait for each other.
#define TILES 4
#define WAVE_PRODUCT(NAME, T, D, V, M, N, K, PRODUCT)                                             \
  WAVE_ROUND(NAME, T, D, V, M, N, K, _Pragma("unroll") for (u32 s = 0; s < 4; ++s)                \
             _Pragma("unroll") for (u32 t = 0; t < TILES; ++t) d[t] = PRODUCT)
#define WAVE_ROUND(NAME, T, D, V, M, N, K, ROUND)                                                 \
  KERNEL BLOCK_OF(256)                                                                            \
  matrix_##NAME(u32 rounds, u32 pattern, u32 mask, u64* clocks, T* out, u64* facts) {             \
    const V a = filled<V>(0, pattern, mask), b = filled<V>(16, pattern, mask);                    \
    D d[TILES] = {};                                                                              \
    __shared__ u64 stamps[STAMPS];                                                                \
    const u64 begin = start_block();                                                              \
    _Pragma("unroll 1") for (u32 r = 0; r < rounds; ++r) { ROUND; }                               \
    stop_block(clocks, begin, stamps);                                                            \
    const u32 count = sizeof(D) / sizeof(T);                                                      \
    T total = (T)0;                                                                               \
    for (u32 t = 0; t < TILES; ++t)                                                               \
      for (u32 i = 0; i < count; ++i) total += d[t][i];                                           \
    out[thread_number()] = total / (T)(count * TILES);                                            \
    note_facts(facts, (u64)(blockDim.x / LANES) * 4 * TILES * 2 * M * N * K, 4 * K);              \
  }
#define MFMA(NAME) __builtin_amdgcn_mfma_##NAME(a, b, d[t], 0, 0, 0)

#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || \
    defined(__gfx950__)
WAVE_PRODUCT(f64, double, f64x4, double, 16, 16, 4, MFMA(f64_16x16x4f64))
WAVE_PRODUCT(f32, float, f32x16, float, 32, 32, 2, MFMA(f32_32x32x2f32))
#endif
#if defined(__gfx950__)
typedef _Float16 f16x8 __attribute__((ext_vector_type(8)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
typedef int i32x6 __attribute__((ext_vector_type(6)));
// Six bits a number: only three words together have whole ones, which begin anew in each.
template <>
DEVICE i32x6 filled<i32x6>(u32 first, u32 pattern, u32 mask) {
  i32x6 words;
  for (u32 i = 0; i < 6; ++i) {
    const u32 phase = 32 * i % 6;
    words[i] = (int)operand(first + i, repeated(pattern, phase), repeated(mask, phase));
  }
  return words;
}
DEVICE i32x8 widened(i32x6 v) { return i32x8{v[0], v[1], v[2], v[3], v[4], v[5], 0, 0}; }
DEVICE i32x8 widened(i32x8 v) { return v; }
#define SCALED(FORMAT)                                                                       \
  __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(widened(a), widened(b), d[t], FORMAT, FORMAT, \
                                                  0, 0x7f7f7f7f, 0, 0x7f7f7f7f)
WAVE_PRODUCT(f16, float, f32x16, f16x8, 32, 32, 16, MFMA(f32_32x32x16_f16))
WAVE_PRODUCT(bf16, float, f32x16, bf16x8, 32, 32, 16, MFMA(f32_32x32x16_bf16))
WAVE_PRODUCT(i8, int, i32x16, i32x4, 32, 32, 32, MFMA(i32_32x32x32_i8))
WAVE_PRODUCT(f8e4m3, float, f32x16, i32x8, 32, 32, 64, SCALED(0))
WAVE_PRODUCT(f8e5m2, float, f32x16, i32x8, 32, 32, 64, SCALED(1))
WAVE_PRODUCT(f4e2m1, float, f32x16, i32x8, 32, 32, 64, SCALED(4))
WAVE_PRODUCT(f6e2m3, float, f32x16, i32x6, 32, 32, 64, SCALED(2))
WAVE_PRODUCT(f6e3m2, float, f32x16, i32x6, 32, 32, 64, SCALED(3))
#elif defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
WAVE_PRODUCT(f16, float, f32x16, f16x4, 32, 32, 8, MFMA(f32_32x32x8f16))
WAVE_PRODUCT(bf16, float, f32x16, i16x4, 32, 32, 8, MFMA(f32_32x32x8bf16_1k))
WAVE_PRODUCT(tf32, float, f32x16, f32x2, 32, 32, 4, MFMA(f32_32x32x4_xf32))
WAVE_PRODUCT(i8, int, i32x16, long, 32, 32, 16, MFMA(i32_32x32x16_i8))
WAVE_PRODUCT(f8e4m3fnuz, float, f32x16, long, 32, 32, 16, MFMA(f32_32x32x16_fp8_fp8))
WAVE_PRODUCT(f8e5m2fnuz, float, f32x16, long, 32, 32, 16, MFMA(f32_32x32x16_bf8_bf8))
#elif defined(__gfx90a__)
WAVE_PRODUCT(f16, float, f32x16, f16x4, 32, 32, 8, MFMA(f32_32x32x8f16))
WAVE_PRODUCT(bf16, float, f32x16, i16x4, 32, 32, 8, MFMA(f32_32x32x8bf16_1k))
WAVE_PRODUCT(i8, int, i32x16, int, 32, 32, 8, MFMA(i32_32x32x8i8))
#elif defined(__GFX11__) || defined(__gfx1200__) || defined(__gfx1201__)
typedef float f32x8 __attribute__((ext_vector_type(8)));
#if defined(__GFX11__)
// Each half of the wave holds a copy of both operands.
typedef int halves __attribute__((ext_vector_type(8)));
typedef int bytes __attribute__((ext_vector_type(4)));
#else
typedef int halves __attribute__((ext_vector_type(4)));
typedef int bytes __attribute__((ext_vector_type(2)));
#endif
// Assembly, and one for all: otherwise copies of the sums take half of the loop.
#define WMMA(CODE, D, SIGNS) "v_wmma_" CODE " %" #D ", %4, %5, %" #D SIGNS "\n\t"
#define WMMA4(CODE, SIGNS) \
  WMMA(CODE, 0, SIGNS) WMMA(CODE, 1, SIGNS) WMMA(CODE, 2, SIGNS) WMMA(CODE, 3, SIGNS)
#define WMMA_PRODUCT(NAME, T, D, V, CODE, SIGNS)                                                  \
  WAVE_ROUND(NAME, T, D, V, 16, 16, 16,                                                           \
             asm volatile(WMMA4(CODE, SIGNS) WMMA4(CODE, SIGNS) WMMA4(CODE, SIGNS)                \
                              WMMA4(CODE, SIGNS)                                                  \
                          : "+v"(d[0]), "+v"(d[1]), "+v"(d[2]), "+v"(d[3])                        \
                          : "v"(a), "v"(b)))
WMMA_PRODUCT(f16, float, f32x8, halves, "f32_16x16x16_f16", "")
WMMA_PRODUCT(bf16, float, f32x8, halves, "f32_16x16x16_bf16", "")
WMMA_PRODUCT(i8, int, i32x8, bytes, "i32_16x16x16_iu8", " neg_lo:[1,1,0]")  // signed operands
#if !defined(__GFX11__)
WMMA_PRODUCT(f8e4m3, float, f32x8, bytes, "f32_16x16x16_fp8_fp8", "")
WMMA_PRODUCT(f8e5m2, float, f32x8, bytes, "f32_16x16x16_bf8_bf8", "")
#endif
#endif
#endif
