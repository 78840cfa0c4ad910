// librocblas over cuBLASLt: gemm_ex and gemm_strided_batched_ex with numbered solutions. As in
// rocBLAS, one list has solutions of one library: Tensile's, which are negative numbers, or with
// ROCBLAS_USE_HIPBLASLT=1 hipBLASLt's, which are its index + 1.
//
//   TENSILE_DB bits 0x4 and 0x8000, ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH   as in rocBLAS
//   ROCBLAS_DEVICE_MEMORY_SIZE              bytes of a handle's workspace, as in rocBLAS
//   SHIM_ROCBLAS=4.3                        number Tensile's solutions from 1, as rocBLAS 4.3 and 4.4
//   SHIM_IGNORE_OVERRIDE=1                  read no override file
#include "solutions.h"

enum { NOT_IMPLEMENTED = 2, INTERNAL_ERROR = 6, INVALID_VALUE = 11 };
enum { RESERVED = 10 };  // rocBLAS keeps the numbers down to -10 for itself
enum { CHECK_ONLY = 8 };  // rocblas_gemm_flags_check_solution_index

struct Handle {
  cudaStream_t stream;
  void* workspace;
  size_t bytes;
};

static int status(cublasStatus_t code) {
  switch (code) {
    case CUBLAS_STATUS_SUCCESS: return 0;
    case CUBLAS_STATUS_NOT_SUPPORTED: return NOT_IMPLEMENTED;
    case CUBLAS_STATUS_INVALID_VALUE: return INVALID_VALUE;
    default: return INTERNAL_ERROR;
  }
}

static int type_of(int rocblas) {
  switch (rocblas) {
    case 150: return CUDA_R_16F;
    case 151: return CUDA_R_32F;
    case 152: return CUDA_R_64F;
    case 160: return CUDA_R_8I;
    case 162: return CUDA_R_32I;
    case 168: return CUDA_R_16BF;
    default: return -1;
  }
}
static int compute_of(int type) {
  switch (type) {
    case CUDA_R_16F: return CUBLAS_COMPUTE_16F;
    case CUDA_R_32F: return CUBLAS_COMPUTE_32F;
    case CUDA_R_64F: return CUBLAS_COMPUTE_64F;
    case CUDA_R_32I: return CUBLAS_COMPUTE_32I;
    default: return -1;
  }
}

static bool uses_hipblaslt() { return variable("ROCBLAS_USE_HIPBLASLT", "0")[0] == '1'; }
static bool is_old() { return !strcmp(variable("SHIM_ROCBLAS", "5.0"), "4.3"); }
// Catalogue's indices are from 1; Tensile's own are from 0.
static int number_of(int index) {
  if (uses_hipblaslt()) return index + 1;
  return is_old() ? index : -index - RESERVED;
}
static int index_of(int number) {  // 0: no solution of the library that is in use
  if (uses_hipblaslt()) return number > 0 ? number - 1 : 0;
  if (is_old()) return number > 0 ? number : 0;
  return number < -RESERVED ? -number - RESERVED : 0;
}

// Descriptors of one call, made anew each time: the shim is not meant to be fast.
struct Matmul {
  Call call = {};
  bool good = true;

  Matmul(int trans_a, int trans_b, int m, int n, int k, int a, int lda, int64_t stride_a, int b,
         int ldb, int64_t stride_b, int c, int ldc, int64_t stride_c, int d, int ldd,
         int64_t stride_d, int batch, int compute) {
    const int scale = type_of(compute), kind = compute_of(scale);
    const int ta = trans_a != 111, tb = trans_b != 111;
    call.types = {type_of(a), type_of(b), type_of(c), type_of(d), kind, scale, ta, tb};
    call.m = m, call.n = n, call.k = k, call.batch = batch;
    call.lda = lda, call.ldb = ldb, call.ldc = ldc, call.ldd = ldd;
    call.stride_a = stride_a, call.stride_b = stride_b;
    call.stride_c = stride_c, call.stride_d = stride_d;
    const Types& t = call.types;
    if (t.a < 0 || t.b < 0 || t.c < 0 || t.d < 0 || kind < 0) {
      good = false;
      return;
    }
    LT(cublasLtMatmulDescCreate)(&call.desc, (cublasComputeType_t)kind, (cudaDataType)scale);
    set(CUBLASLT_MATMUL_DESC_TRANSA, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    call.a = layout(t.a, ta ? k : m, ta ? m : k, lda, stride_a);
    call.b = layout(t.b, tb ? n : k, tb ? k : n, ldb, stride_b);
    call.c = layout(t.c, m, n, ldc, stride_c);
    call.d = layout(t.d, m, n, ldd, stride_d);
  }
  ~Matmul() {
    if (!good) return;
    LT(cublasLtMatmulDescDestroy)(call.desc);
    for (cublasLtMatrixLayout_t one : {call.a, call.b, call.c, call.d})
      LT(cublasLtMatrixLayoutDestroy)(one);
  }

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, int32_t value) {
    LT(cublasLtMatmulDescSetAttribute)(call.desc, attribute, &value, sizeof value);
  }
  cublasLtMatrixLayout_t layout(int type, uint64_t rows, uint64_t columns, int64_t ld,
                                int64_t stride) {
    cublasLtMatrixLayout_t made;
    LT(cublasLtMatrixLayoutCreate)(&made, (cudaDataType)type, rows, columns, ld);
    if (call.batch > 1) {
      LT(cublasLtMatrixLayoutSetAttribute)(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &call.batch,
                                           sizeof call.batch);
      LT(cublasLtMatrixLayoutSetAttribute)(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                           &stride, sizeof stride);
    }
    return made;
  }
};

// -- override file: 15 values by position, or 18 with the strides of a batch before the types

static std::string key_of(const Call& call, double beta) {
  std::ostringstream key;
  key << (call.types.transposed_a ? "T" : "N") << ',' << (call.types.transposed_b ? "T" : "N")
      << ',' << call.m << ',' << call.n << ',' << call.batch << ',' << call.k << ',' << beta << ','
      << call.lda << ',' << call.ldb << ',' << call.ldc;
  if (call.batch > 1)
    key << ',' << call.stride_a << ',' << call.stride_b << ',' << call.stride_c;
  key << ',' << type_word(call.types.a) << ',' << type_word(call.types.c) << ','
      << compute_word(call.types.compute);
  return key.str();
}

static const std::map<std::string, int>& overrides() {
  static const auto found = [] {
    std::map<std::string, int> entries;
    const char* path = getenv("ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH");
    if (!path || getenv("SHIM_IGNORE_OVERRIDE")) return entries;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::vector<std::string> cells;
      std::istringstream rest(line);
      for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
      if (cells.size() != 15 && cells.size() != 18) continue;
      const bool strides = cells.size() == 18;
      const int index = atoi(cells.back().c_str());
      if (index <= 0) continue;
      std::ostringstream key;
      key << (cells[0] == "N" ? "N" : "T") << ',' << (cells[1] == "N" ? "N" : "T");
      for (int i = 2; i < 6; ++i) key << ',' << atoll(cells[i].c_str());
      key << ',' << atof(cells[7].c_str());  // beta; alpha is not looked at
      for (int i = 8; i < 11; ++i) key << ',' << atoll(cells[i].c_str());
      const bool batch = atoi(cells[4].c_str()) > 1;
      for (int i = 11; i < 14 && strides && batch; ++i) key << ',' << atoll(cells[i].c_str());
      for (size_t i = strides ? 14 : 11; i + 1 < cells.size(); ++i) key << ',' << cells[i];
      entries[key.str()] = index;
    }
    return entries;
  }();
  return found;
}

static double scalar(const void* value, int type) {
  switch (type) {
    case CUDA_R_64F: return *(const double*)value;
    case CUDA_R_32I: return *(const int*)value;
    case CUDA_R_16F: return *(const uint16_t*)value == 0 ? 0 : 1;
    default: return *(const float*)value;
  }
}

static void tell(long bit, const char* form, int number, const std::string& name) {
  if (!(strtol(variable("TENSILE_DB", "0"), nullptr, 0) & bit)) return;
  if (bit == 0x4)
    printf(form, number, name.c_str());
  else
    printf(form, name.c_str());
  fflush(stdout);
}

static int run(Handle* handle, const Matmul& matmul, const void* alpha, const void* a,
               const void* b, const void* beta, const void* c, void* d, int algorithm, int number,
               unsigned flags) {
  if (!matmul.good) return NOT_IMPLEMENTED;
  const Call& call = matmul.call;
  Choice choice = {};
  if (algorithm == 1 && number != 0) {
    const int index = index_of(number);
    const Solution* solution = index ? Catalogue::get().find(index) : nullptr;
    if (!solution) return INVALID_VALUE;
    if (const cublasStatus_t code = check(call, index, &choice)) return status(code);
    if (!uses_hipblaslt())
      tell(0x4, "Selection solution with index: %d and name: '%s'\n", index - 1, solution->name());
    if (flags & CHECK_ONLY) return 0;
  } else {
    const auto entry = overrides().find(key_of(call, scalar(beta, call.types.scale)));
    // hipBLASLt does not read rocBLAS's file.
    const bool found_entry = !uses_hipblaslt() && entry != overrides().end();
    if (!found_entry || check(call, entry->second, &choice)) {
      std::vector<Choice> found;
      if (const cublasStatus_t code = choose(call, handle->bytes, 1, &found)) return status(code);
      if (found.empty()) return NOT_IMPLEMENTED;
      choice = found[0];
    }
  }
  if (choice.workspace > handle->bytes) return 5;
  const Solution* solution = Catalogue::get().find(choice.index);
  const std::string name = uses_hipblaslt() ? solution->kernel_name() : solution->name();
  tell(0x8000, "Running kernel: %s\n", 0, name);
  return status(LT(cublasLtMatmul)(lt_handle(), call.desc, alpha, a, call.a, b, call.b, beta, c,
                                   call.c, d, call.d, &choice.algorithm, handle->workspace,
                                   handle->bytes, handle->stream));
}

static int list(Handle* handle, const Matmul& matmul, int* numbers, int* count) {
  if (!matmul.good) return NOT_IMPLEMENTED;
  std::vector<Choice> found;
  if (const cublasStatus_t code = choose(matmul.call, handle->bytes, 256, &found))
    return status(code);
  const int room = *count;
  if (!numbers) return *count = (int)found.size(), 0;
  for (*count = 0; *count < (int)found.size() && *count < room; ++*count)
    numbers[*count] = number_of(found[*count].index);
  return 0;
}

#define API EXPORT int

API rocblas_create_handle(Handle** made) {
  const char* bytes = variable("ROCBLAS_DEVICE_MEMORY_SIZE", "134217728");  // gfx942's default
  *made = new Handle{nullptr, nullptr, strtoul(bytes, nullptr, 0)};
  return lt_handle() ? 0 : 6;
}
API rocblas_get_device_memory_size(Handle* handle, size_t* bytes) {
  return *bytes = handle->bytes, 0;
}
API rocblas_destroy_handle(Handle* handle) { return delete handle, 0; }
API rocblas_set_stream(Handle* handle, cudaStream_t stream) { return handle->stream = stream, 0; }
API rocblas_set_workspace(Handle* handle, void* at, size_t bytes) {
  return handle->workspace = at, handle->bytes = bytes, 0;
}
static const char* version() { return is_old() ? "4.3.0.hipshim" : "5.0.2.hipshim"; }
API rocblas_get_version_string_size(size_t* bytes) { return *bytes = strlen(version()) + 1, 0; }
API rocblas_get_version_string(char* text, size_t bytes) {
  return snprintf(text, bytes, "%s", version()), 0;
}

API rocblas_gemm_ex(Handle* handle, int trans_a, int trans_b, int m, int n, int k,
                    const void* alpha, const void* a, int a_type, int lda, const void* b,
                    int b_type, int ldb, const void* beta, const void* c, int c_type, int ldc,
                    void* d, int d_type, int ldd, int compute, int algorithm, int number,
                    unsigned flags) {
  const Matmul matmul(trans_a, trans_b, m, n, k, a_type, lda, 0, b_type, ldb, 0, c_type, ldc, 0,
                      d_type, ldd, 0, 1, compute);
  return run(handle, matmul, alpha, a, b, beta, c, d, algorithm, number, flags);
}
API rocblas_gemm_strided_batched_ex(Handle* handle, int trans_a, int trans_b, int m, int n, int k,
                                    const void* alpha, const void* a, int a_type, int lda,
                                    int64_t stride_a, const void* b, int b_type, int ldb,
                                    int64_t stride_b, const void* beta, const void* c, int c_type,
                                    int ldc, int64_t stride_c, void* d, int d_type, int ldd,
                                    int64_t stride_d, int batch, int compute, int algorithm,
                                    int number, unsigned flags) {
  const Matmul matmul(trans_a, trans_b, m, n, k, a_type, lda, stride_a, b_type, ldb, stride_b,
                      c_type, ldc, stride_c, d_type, ldd, stride_d, batch, compute);
  return run(handle, matmul, alpha, a, b, beta, c, d, algorithm, number, flags);
}
API rocblas_gemm_ex_get_solutions(Handle* handle, int trans_a, int trans_b, int m, int n, int k,
                                  const void*, const void*, int a_type, int lda, const void*,
                                  int b_type, int ldb, const void*, const void*, int c_type,
                                  int ldc, void*, int d_type, int ldd, int compute, int, unsigned,
                                  int* numbers, int* count) {
  const Matmul matmul(trans_a, trans_b, m, n, k, a_type, lda, 0, b_type, ldb, 0, c_type, ldc, 0,
                      d_type, ldd, 0, 1, compute);
  return list(handle, matmul, numbers, count);
}
API rocblas_gemm_strided_batched_ex_get_solutions(
    Handle* handle, int trans_a, int trans_b, int m, int n, int k, const void*, const void*,
    int a_type, int lda, int64_t stride_a, const void*, int b_type, int ldb, int64_t stride_b,
    const void*, const void*, int c_type, int ldc, int64_t stride_c, void*, int d_type, int ldd,
    int64_t stride_d, int batch, int compute, int, unsigned, int* numbers, int* count) {
  const Matmul matmul(trans_a, trans_b, m, n, k, a_type, lda, stride_a, b_type, ldb, stride_b,
                      c_type, ldc, stride_c, d_type, ldd, stride_d, batch, compute);
  return list(handle, matmul, numbers, count);
}
