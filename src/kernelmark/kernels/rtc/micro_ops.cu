// Chains of one instruction: ILP independent ones in each thread, each step needing the one before.
// One thread's chain gives the latency, many threads with many chains the throughput.
//
// Steps that a compiler could merge or fold are written as instructions, the others in C++.
#ifdef NVIDIA
#define STEP1(CODE, KIND) asm volatile(CODE : "+" KIND(x))
#define STEP2(CODE, KIND) asm volatile(CODE : "+" KIND(x) : KIND(y))
#endif

#define OP(NAME, TYPE, ...)                    \
  struct NAME {                                \
    typedef TYPE T;                            \
    static DEVICE T step(T x, T y) {           \
      __VA_ARGS__;                             \
      return x;                                \
    }                                          \
  };

// DEPTH steps of each of ILP chains.
template <typename Op, int ILP, int DEPTH>
struct Steps {
  template <typename T>
  static DEVICE void take(T* x, T y) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
#pragma unroll
      for (int i = 0; i < ILP; ++i) x[i] = Op::step(x[i], y);
  }
};

#if defined(NVIDIA)
OP(add_f32, float, STEP2("add.f32 %0, %0, %1;", "f"))
OP(mul_f32, float, STEP2("mul.f32 %0, %0, %1;", "f"))
OP(fma_f32, float, STEP2("fma.rn.f32 %0, %0, %1, %1;", "f"))
OP(add_f64, double, STEP2("add.f64 %0, %0, %1;", "d"))
OP(mul_f64, double, STEP2("mul.f64 %0, %0, %1;", "d"))
OP(fma_f64, double, STEP2("fma.rn.f64 %0, %0, %1, %1;", "d"))
OP(fma_f16x2, u32, STEP2("fma.rn.f16x2 %0, %0, %1, %1;", "r"))
#if __CUDA_ARCH__ >= 800
OP(fma_bf16x2, u32, STEP2("fma.rn.bf16x2 %0, %0, %1, %1;", "r"))
#define HAS_BF16X2
#endif
OP(div_f32, float, STEP2("div.rn.f32 %0, %1, %0;", "f"))
OP(sqrt_f32, float, STEP1("sqrt.rn.f32 %0, %0;", "f"))
OP(div_f64, double, STEP2("div.rn.f64 %0, %1, %0;", "d"))
OP(sqrt_f64, double, STEP1("sqrt.rn.f64 %0, %0;", "d"))
OP(rsqrt_f32, float, STEP1("rsqrt.approx.ftz.f32 %0, %0;", "f"))
OP(exp2_f32, float, STEP1("ex2.approx.ftz.f32 %0, %0;", "f"))
OP(log2_f32, float, STEP1("lg2.approx.ftz.f32 %0, %0;", "f"))
OP(sin_f32, float, STEP1("sin.approx.ftz.f32 %0, %0;", "f"))
// Additions alone would be gathered into fewer instructions of three terms.
OP(add_xor_i32, u32, asm volatile("add.u32 %0, %0, %1;\n\txor.b32 %0, %0, %1;" : "+r"(x) : "r"(y)))
OP(mul_i32, u32, STEP2("mul.lo.u32 %0, %0, %1;", "r"))
OP(mad_i32, u32, STEP2("mad.lo.u32 %0, %0, %1, %1;", "r"))
OP(shift_i32, u32, STEP2("shf.l.wrap.b32 %0, %0, %0, %1;", "r"))
OP(permute_i32, u32, STEP2("prmt.b32 %0, %0, %1, 0x2103;", "r"))
OP(popc_i32, u32, STEP1("popc.b32 %0, %0;", "r"))
OP(dot4_i8, u32, STEP2("dp4a.u32.u32 %0, %0, %1, %1;", "r"))
OP(shuffle_i32, u32, asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 31, 0xffffffff;" : "+r"(x)))
// The bits of the result are the next number: there and back again would be taken out.
OP(convert_i32_f32, u32, asm volatile("{.reg .f32 t;\n\tcvt.rn.f32.u32 t, %0;\n\tmov.b32 %0, t;}"
                                      : "+r"(x)))
#elif defined(AMD)
// 128 steps are one piece of assembly: the compiler does not know what is in it, and on gfx942 lets
// one such piece wait for another. CODE(x, y) is a step; a register that it writes is no other's.
#define TWICE(S) S S
#define TIMES_16(S) TWICE(TWICE(TWICE(TWICE(S))))
#define TIMES_32(S) TWICE(TIMES_16(S))
#define TIMES_64(S) TWICE(TIMES_32(S))
#define TIMES_128(S) TWICE(TIMES_64(S))
#define PIECE(NAME, TYPE, ILP, TEXT, ...)                                         \
  template <int DEPTH>                                                            \
  struct Steps<NAME, ILP, DEPTH> {                                                \
    static DEVICE void take(TYPE* x, TYPE y) {                                    \
      _Pragma("unroll") for (int d = 0; d < DEPTH; d += 128 / ILP)                \
          asm volatile(TEXT : __VA_ARGS__ : "v"(y));                              \
    }                                                                             \
  };
#define R2(i) "+&v"(x[i]), "+&v"(x[i + 1])
#define CODE_OP(NAME, TYPE, CODE)                                                 \
  struct NAME {                                                                   \
    typedef TYPE T;                                                               \
  };                                                                              \
  PIECE(NAME, TYPE, 1, TIMES_128(CODE("%0", "%1")), "+&v"(x[0]))                  \
  PIECE(NAME, TYPE, 2, TIMES_64(CODE("%0", "%2") CODE("%1", "%2")), R2(0))        \
  PIECE(NAME, TYPE, 4,                                                            \
        TIMES_32(CODE("%0", "%4") CODE("%1", "%4") CODE("%2", "%4")               \
                     CODE("%3", "%4")),                                           \
        R2(0), R2(2))                                                             \
  PIECE(NAME, TYPE, 8,                                                            \
        TIMES_16(CODE("%0", "%8") CODE("%1", "%8") CODE("%2", "%8")               \
                     CODE("%3", "%8") CODE("%4", "%8") CODE("%5", "%8")           \
                         CODE("%6", "%8") CODE("%7", "%8")),                      \
        R2(0), R2(2), R2(4), R2(6))
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
#define ADD_U32 "v_add_nc_u32 "
#else
#define ADD_U32 "v_add_u32 "
#endif

#define ADD_F32(x, y) "v_add_f32 " x ", " x ", " y "\n\t"
#define MUL_F32(x, y) "v_mul_f32 " x ", " x ", " y "\n\t"
#define FMA_F32(x, y) "v_fma_f32 " x ", " x ", " y ", " y "\n\t"
#define FMA_F32X2(x, y) "v_pk_fma_f32 " x ", " x ", " y ", " y "\n\t"
#define FMA_F16X2(x, y) "v_pk_fma_f16 " x ", " x ", " y ", " y "\n\t"
#define ADD_XOR_I32(x, y) ADD_U32 x ", " x ", " y "\n\tv_xor_b32 " x ", " x ", " y "\n\t"
#define MUL_I32(x, y) "v_mul_lo_u32 " x ", " x ", " y "\n\t"
#define SHIFT_I32(x, y) "v_alignbit_b32 " x ", " x ", " x ", " y "\n\t"
#define PERMUTE_I32(x, y) "v_perm_b32 " x ", " x ", " y ", " y "\n\t"
#define POPC_I32(x, y) "v_bcnt_u32_b32 " x ", " x ", " y "\n\t"
#define CONVERT_I32_F32(x, y) "v_cvt_f32_u32 " x ", " x "\n\t"

// Two chains of f32 in C++ would become one of pairs.
CODE_OP(add_f32, float, ADD_F32)
CODE_OP(mul_f32, float, MUL_F32)
CODE_OP(fma_f32, float, FMA_F32)
OP(add_f64, double, x = x + y)
OP(mul_f64, double, x = x * y)
OP(fma_f64, double, x = fused(x, y, y))
CODE_OP(fma_f16x2, u32, FMA_F16X2)
OP(div_f32, float, x = y / x)
OP(sqrt_f32, float, x = __builtin_sqrtf(x))
OP(div_f64, double, x = y / x)
OP(sqrt_f64, double, x = __builtin_sqrt(x))
OP(rsqrt_f32, float, x = __builtin_amdgcn_rsqf(x))
OP(exp2_f32, float, x = __builtin_amdgcn_exp2f(x))
OP(log2_f32, float, x = __builtin_amdgcn_logf(x))
OP(sin_f32, float, x = __builtin_amdgcn_sinf(x))
CODE_OP(add_xor_i32, u32, ADD_XOR_I32)
CODE_OP(mul_i32, u32, MUL_I32)
// v_mad_u64_u32: no other takes all 32 bits. Assembly could not name the half that is the result.
OP(mad_i32, u32, x = x * y + y)
CODE_OP(shift_i32, u32, SHIFT_I32)
CODE_OP(permute_i32, u32, PERMUTE_I32)
CODE_OP(popc_i32, u32, POPC_I32)
OP(shuffle_i32, u32, x = (u32)__builtin_amdgcn_ds_bpermute((int)(threadIdx.x ^ 1u) * 4, (int)x))
CODE_OP(convert_i32_f32, u32, CONVERT_I32_F32)
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__) || defined(__gfx950__)
CODE_OP(fma_f32x2, u64, FMA_F32X2)
#define HAS_F32X2
#endif
#else
// The empty instruction keeps the compiler from folding two steps into one.
#define KEEP(x) asm volatile("" : "+r"(x))
#if defined(__aarch64__)
#define KEEP_REAL(x) asm volatile("" : "+w"(x))
#elif defined(__x86_64__)
#define KEEP_REAL(x) asm volatile("" : "+x"(x))
#else
#define KEEP_REAL(x)
#endif
OP(add_f32, float, x = x + y; KEEP_REAL(x))
OP(mul_f32, float, x = x * y; KEEP_REAL(x))
OP(fma_f32, float, x = fused(x, y, y); KEEP_REAL(x))
OP(add_f64, double, x = x + y; KEEP_REAL(x))
OP(mul_f64, double, x = x * y; KEEP_REAL(x))
OP(fma_f64, double, x = fused(x, y, y); KEEP_REAL(x))
OP(div_f32, float, x = y / x; KEEP_REAL(x))
OP(sqrt_f32, float, x = __builtin_sqrtf(x); KEEP_REAL(x))
OP(div_f64, double, x = y / x; KEEP_REAL(x))
OP(sqrt_f64, double, x = __builtin_sqrt(x); KEEP_REAL(x))
OP(add_xor_i32, u32, x = x + y; KEEP(x); x = x ^ y; KEEP(x))
OP(mul_i32, u32, x = x * y; KEEP(x))
OP(add_i64, u64, x = x + y; KEEP(x))
OP(mul_i64, u64, x = x * y; KEEP(x))
#endif

// `steps` of the unrolled loop are ILP * DEPTH steps of Op each. `zero` times the thread makes the
// values differ by thread for all the compiler knows, so that they live in vector registers.
template <typename Op, int ILP, int DEPTH, typename T>
DEVICE void chain(u32 steps, T seed, T other, u32 zero, u64* clocks, T* out) {
  __shared__ u64 stamps[STAMPS];
  T x[ILP];
#pragma unroll
  for (int i = 0; i < ILP; ++i) x[i] = seed + (T)(threadIdx.x * zero);
#ifdef AMD
  // For all the compiler knows, every chain is another's; and all is in vector registers.
  asm volatile("" : "+v"(other));
#pragma unroll
  for (int i = 0; i < ILP; ++i) asm volatile("" : "+v"(x[i]));
#endif
  const u64 begin = start_block();
#pragma unroll 1
  for (u32 s = 0; s < steps; ++s) Steps<Op, ILP, DEPTH>::take(x, other);
  stop_block(clocks, begin, stamps);
  T* mine = out + thread_number() * 8;
#pragma unroll
  for (int i = 0; i < ILP; ++i) mine[i] = x[i];
}

#define CHAIN(NAME, T, ILP, DEPTH)                                                      \
  KERNEL BLOCK_OF(1024)                                                                 \
  chain_##NAME##_##ILP(u32 steps, T seed, T other, u32 zero, u64* clocks, T* out) {     \
    chain<NAME, ILP, DEPTH, T>(steps, seed, other, zero, clocks, out);                  \
  }
// Every kernel's loop is as long: 512 steps, 128 or, for what a call or many instructions stand
// behind, 8. micro/_chains.py knows these lengths.
#define LONG_CHAINS(NAME, T) \
  CHAIN(NAME, T, 1, 512)     \
  CHAIN(NAME, T, 2, 256)     \
  CHAIN(NAME, T, 4, 128)     \
  CHAIN(NAME, T, 8, 64)
#define SLOW_CHAINS(NAME, T) \
  CHAIN(NAME, T, 1, 8)       \
  CHAIN(NAME, T, 2, 4)       \
  CHAIN(NAME, T, 4, 2)       \
  CHAIN(NAME, T, 8, 1)
#define CHAINS(NAME, T)      \
  CHAIN(NAME, T, 1, 128)     \
  CHAIN(NAME, T, 8, 16)

LONG_CHAINS(fma_f32, float)
LONG_CHAINS(fma_f64, double)
SLOW_CHAINS(div_f32, float)
SLOW_CHAINS(div_f64, double)
SLOW_CHAINS(sqrt_f32, float)
SLOW_CHAINS(sqrt_f64, double)
CHAINS(add_f32, float)
CHAINS(mul_f32, float)
CHAINS(add_f64, double)
CHAINS(mul_f64, double)
CHAINS(add_xor_i32, u32)
CHAINS(mul_i32, u32)
#if !defined(NVIDIA) && !defined(AMD)
CHAINS(add_i64, u64)
CHAINS(mul_i64, u64)
#else
CHAINS(fma_f16x2, u32)
CHAINS(mad_i32, u32)
CHAINS(shift_i32, u32)
CHAINS(permute_i32, u32)
CHAINS(popc_i32, u32)
CHAINS(rsqrt_f32, float)
CHAINS(exp2_f32, float)
CHAINS(log2_f32, float)
CHAINS(sin_f32, float)
CHAINS(shuffle_i32, u32)
CHAINS(convert_i32_f32, u32)
#endif
#ifdef HAS_BF16X2
CHAINS(fma_bf16x2, u32)
#endif
#ifdef NVIDIA
CHAINS(dot4_i8, u32)
#endif
#ifdef HAS_F32X2
CHAINS(fma_f32x2, u64)
#endif
