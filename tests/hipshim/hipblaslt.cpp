// libhipblaslt over cuBLASLt: hipBLASLt's C functions, and the two C++ ones that name a solution.
// Attributes, enumerators and structs are those of ROCm's headers; see solutions.h for indices.
//
//   HIPBLASLT_TUNING_OVERRIDE_FILE, HIPBLASLT_LOG_MASK (32, 64, 128), HIPBLASLT_LOG_FILE
//   TENSILE_DB bit 0x8000   as in hipBLASLt
//   SHIM_IGNORE_OVERRIDE=1  read no override file, as a library without that feature
#include <functional>
#include <new>

#include "solutions.h"

// A caller frees the string of a solution's name by the operator delete that it finds from this
// library, which has to be the one that goes with its operator new.
#define EXPORTED __attribute__((visibility("default")))
EXPORTED void* operator new(size_t bytes) {
  if (void* found = std::malloc(bytes ? bytes : 1)) return found;
  throw std::bad_alloc();
}
EXPORTED void operator delete(void* at) noexcept { std::free(at); }
EXPORTED void operator delete(void* at, size_t) noexcept { std::free(at); }

struct _hipblasLtMatmulAlgo_t {
  uint8_t data[16];
  size_t max_workspace_bytes;
};
struct Result {  // hipblasLtMatmulHeuristicResult_t
  _hipblasLtMatmulAlgo_t algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(_hipblasLtMatmulAlgo_t) == 24, "hipblasLtMatmulAlgo_t");
static_assert(sizeof(Result) == 56, "hipblasLtMatmulHeuristicResult_t");

enum { INVALID_VALUE = 3, NOT_SUPPORTED = 7 };
// hipblasLtEpilogue_t's bits that cuBLASLt has too, by the same numbers; it has no SWISH.
constexpr int DEFAULT = 1, RELU = 2, BIAS = 4, GELU = 32;
static_assert(RELU == (int)CUBLASLT_EPILOGUE_RELU && GELU == (int)CUBLASLT_EPILOGUE_GELU, "");
static_assert(DEFAULT == (int)CUBLASLT_EPILOGUE_DEFAULT && BIAS == (int)CUBLASLT_EPILOGUE_BIAS, "");
static_assert((RELU | BIAS) == (int)CUBLASLT_EPILOGUE_RELU_BIAS, "");
static_assert((GELU | BIAS) == (int)CUBLASLT_EPILOGUE_GELU_BIAS, "");
enum { A_SCALE_POINTER = 5, B_SCALE_POINTER = 6, A_SCALE_MODE = 31, B_SCALE_MODE = 32 };
enum { OUTER_VEC_32F = 3 };  // cuBLASLt has it from CUDA 12.9 on

static int status(cublasStatus_t code) {
  switch (code) {
    case CUBLAS_STATUS_SUCCESS: return 0;
    case CUBLAS_STATUS_NOT_INITIALIZED: return 1;
    case CUBLAS_STATUS_ALLOC_FAILED: return 2;
    case CUBLAS_STATUS_INVALID_VALUE: return INVALID_VALUE;
    case CUBLAS_STATUS_MAPPING_ERROR: return 4;
    case CUBLAS_STATUS_EXECUTION_FAILED: return 5;
    case CUBLAS_STATUS_NOT_SUPPORTED: return NOT_SUPPORTED;
    case CUBLAS_STATUS_ARCH_MISMATCH: return 8;
    default: return 6;
  }
}

static int compute_of(int hip) {
  switch (hip) {
    case 0: return CUBLAS_COMPUTE_16F;
    case 2: return CUBLAS_COMPUTE_32F;
    case 4: return CUBLAS_COMPUTE_32F_FAST_16F;
    case 5: return CUBLAS_COMPUTE_32F_FAST_16BF;
    case 6: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case 7: return CUBLAS_COMPUTE_64F;
    case 9: return CUBLAS_COMPUTE_32I;
    default: return -1;
  }
}

struct Layout {
  cublasLtMatrixLayout_t cuda;
  cublasLtMatrixLayout_t wide;  // of an 8-bit float: the same in bf16, which cuBLASLt wants for C
  int type;
  uint64_t rows, columns;
  int64_t ld, stride;
  int batch;
};
struct Desc {
  cublasLtMatmulDesc_t cuda;
  int compute, scale, transposed_a, transposed_b;
  uint32_t epilogue;
  int bias_type;
  bool scaled_a, scaled_b;
};
struct Preference {
  uint64_t workspace;
};

static Call call_of(const Desc* desc, const Layout* a, const Layout* b, const Layout* c,
                    const Layout* d) {
  Call call = {};
  call.desc = desc->cuda;
  call.a = a->cuda, call.b = b->cuda, call.c = c->wide ? c->wide : c->cuda, call.d = d->cuda;
  call.types = {a->type,       b->type,     c->wide ? (int)CUDA_R_16BF : c->type, d->type,
                desc->compute, desc->scale, desc->transposed_a, desc->transposed_b};
  call.m = d->rows, call.n = d->columns, call.k = desc->transposed_a ? a->rows : a->columns;
  call.lda = a->ld, call.ldb = b->ld, call.ldc = c->ld, call.ldd = d->ld;
  call.stride_a = a->stride, call.stride_b = b->stride;
  call.stride_c = c->stride, call.stride_d = d->stride;
  call.batch = d->batch;
  return call;
}

// -- override file: see UserDrivenTuningParser.cpp in hipBLASLt

static std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream rest(line.substr(std::min(line.find_first_not_of(" \t\r"), line.size())));
  for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
  return cells;
}

static std::string key_of(const Call& call) {
  std::ostringstream key;
  key << (call.types.transposed_a ? "T" : "N") << ',' << (call.types.transposed_b ? "T" : "N")
      << ',' << call.batch << ',' << call.m << ',' << call.n << ',' << call.k << ','
      << type_word(call.types.a) << ',' << type_word(call.types.b) << ','
      << type_word(call.types.c) << ',' << compute_word(call.types.compute);
  return key.str();
}

static const std::multimap<std::string, int>& overrides() {
  static const auto found = [] {
    std::multimap<std::string, int> entries;
    const char* path = getenv("HIPBLASLT_TUNING_OVERRIDE_FILE");
    if (!path || getenv("SHIM_IGNORE_OVERRIDE")) return entries;
    static const char* const needed[] = {"transA", "transB", "batch_count", "m",      "n",
                                         "k",      "a_type", "b_type",      "c_type", "compute_type",
                                         "solution_index"};
    std::ifstream file(path);
    for (std::string head, values; std::getline(file, head);) {
      if (head.find("transA") == std::string::npos || !std::getline(file, values)) continue;
      const auto names = cells_of(head), cells = cells_of(values);
      std::vector<std::string> taken;
      for (size_t i = 0; i < names.size() && i < cells.size() && taken.size() < 11; ++i)
        if (names[i] == needed[taken.size()]) taken.push_back(cells[i]);
      if (taken.size() < 11) continue;
      std::string key = taken[0] == "N" ? "N" : "T";
      key += taken[1] == "N" ? ",N" : ",T";
      for (int i = 2; i < 10; ++i) key += "," + taken[i];
      const int index = atoi(taken[10].c_str());
      if (index > 0) entries.emplace(key, index);
    }
    return entries;
  }();
  return found;
}

// -- log: HIPBLASLT_LOG_MASK 32 a command a call, 64 and 128 a map a distinct call at the end

class Log {
 public:
  static Log& get() {
    static Log one;
    return one;
  }
  ~Log() {
    for (const auto& [text, count] : calls_) *out_ << text << ", call_count: " << count << " }\n";
    out_->flush();
  }
  void add(const Desc* desc, const Call& call, const void* alpha, const void* beta, int index) {
    if (!(mask_ & (32 | 64 | 128))) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool bench = mask_ & 32;
    std::ostringstream text;
    const char *between = "", *after = "";
    auto field = [&](const char* name, const auto& value) {
      text << between << (bench ? (strlen(name) > 1 ? "--" : "-") : "") << name << after << value;
    };
    if (bench) {
      text << "hipblaslt-bench --api_method c ";
      between = " ", after = " ";
    } else {
      text << "- { function: matmul";
      between = ", ", after = ": ";
    }
    const Types& t = call.types;
    field(bench ? "m" : "M", call.m);
    field(bench ? "n" : "N", call.n);
    field(bench ? "k" : "K", call.k);
    field("lda", call.lda), field("ldb", call.ldb), field("ldc", call.ldc), field("ldd", call.ldd);
    field("stride_a", call.stride_a), field("stride_b", call.stride_b);
    field("stride_c", call.stride_c), field("stride_d", call.stride_d);
    field("alpha", scalar(alpha, t.scale)), field("beta", scalar(beta, t.scale));
    field("transA", t.transposed_a ? "T" : "N"), field("transB", t.transposed_b ? "T" : "N");
    field("batch_count", call.batch);
    field("scaleA", (int)desc->scaled_a), field("scaleB", (int)desc->scaled_b);
    const bool bias = desc->epilogue & BIAS;
    if (!bench) {
      field("scaleAlpha_vector", "false"), field("gradient", "false"), field("use_e", "false");
      field("bias_vector", bias ? "true" : "false"), field("bias_source", "d");
    } else if (bias) {
      text << " --bias_vector --bias_source d";
    }
    field("a_type", type_word(t.a)), field("b_type", type_word(t.b));
    field("c_type", type_word(t.c)), field("d_type", type_word(t.d));
    field("scale_type", type_word(t.scale)), field("bias_type", type_word(desc->bias_type));
    field("compute_type", (bench ? "" : "c_") + compute_word(t.compute));
    if (bench) {
      field("algo_method", "index"), field("solution_index", index);
      field("activation_type", activation_of(desc));
      *out_ << text.str() << std::endl;
      return;
    }
    field("activation_type", activation_of(desc)), field("flush", "false"), field("rotating", 0);
    field("cold_iters", 0), field("iters", 0);
    if (mask_ & 128) {
      const Solution* solution = Catalogue::get().find(index);
      field("solution_index", index), field("solution_Name", solution ? solution->name() : "");
      field("kernel_name", solution ? solution->kernel_name() : "");
    }
    ++calls_[text.str()];
  }

 private:
  Log() : mask_(strtol(variable("HIPBLASLT_LOG_MASK", "0"), nullptr, 0)), out_(&err_) {
    std::string path = variable("HIPBLASLT_LOG_FILE", "");
    if (!mask_ || path.empty()) path = "/dev/stderr";
    const size_t at = path.find("%i");
    if (at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
    err_.open(path);
  }
  static const char* activation_of(const Desc* desc) {
    return desc->epilogue & RELU ? "relu" : desc->epilogue & GELU ? "gelu" : "none";
  }
  static std::string scalar(const void* value, int type) {
    switch (type) {
      case CUDA_R_64F: return std::to_string(*(const double*)value);
      case CUDA_R_32I: return std::to_string(*(const int*)value);
      case CUDA_R_16F: return *(const uint16_t*)value == 0 ? "0.000000" : "1.000000";
      default: return std::to_string(*(const float*)value);
    }
  }
  long mask_;
  std::ofstream err_;
  std::ostream* out_;
  std::mutex mutex_;
  std::map<std::string, int> calls_;
};

// -- descriptions

#define API EXPORT int

API hipblasLtCreate(void** handle) {
  *handle = lt_handle();
  Log::get();
  return *handle ? 0 : 1;
}
API hipblasLtDestroy(void*) { return 0; }
API hipblasLtGetVersion(void*, int* version) { return *version = 100202, 0; }
API hipblasLtGetGitRevision(void*, char* text) { return strcpy(text, "5b1e5eed"), 0; }

API hipblasLtMatmulDescCreate(Desc** made, int compute, int scale) {
  const int kind = compute_of(compute);
  if (kind < 0) return NOT_SUPPORTED;
  *made = new Desc{nullptr, kind, scale, 0, 0, DEFAULT, scale, false, false};
  return status(LT(cublasLtMatmulDescCreate)(&(*made)->cuda, (cublasComputeType_t)kind,
                                             (cudaDataType)scale));
}
API hipblasLtMatmulDescDestroy(Desc* desc) {
  LT(cublasLtMatmulDescDestroy)(desc->cuda);
  delete desc;
  return 0;
}
API hipblasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t bytes) {
  static const std::map<int, cublasLtMatmulDescAttributes_t> same = {
      {0, CUBLASLT_MATMUL_DESC_TRANSA},          {1, CUBLASLT_MATMUL_DESC_TRANSB},
      {2, CUBLASLT_MATMUL_DESC_EPILOGUE},        {3, CUBLASLT_MATMUL_DESC_BIAS_POINTER},
      {4, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE},  {5, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER},
      {6, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}, {7, CUBLASLT_MATMUL_DESC_C_SCALE_POINTER},
      {8, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER}, {13, CUBLASLT_MATMUL_DESC_POINTER_MODE},
      {A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE},
      {B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE},
  };
  const auto found = same.find(attribute);
  if (found == same.end()) return NOT_SUPPORTED;
  int32_t number = 0;
  memcpy(&number, value, bytes < 4 ? bytes : 4);
  if (attribute <= 1) {
    number = number == 111 ? CUBLAS_OP_N : CUBLAS_OP_T;
    (attribute ? desc->transposed_b : desc->transposed_a) = number == CUBLAS_OP_T;
    value = &number;
  }
  if (attribute == 2 && number & ~(DEFAULT | RELU | BIAS | GELU)) return NOT_SUPPORTED;
  // hipBLASLt's block scales are rows, cuBLASLt's are tiles of 128x4: they would be misread. Factors
  // of rows are the same in both.
  const bool mode = attribute == A_SCALE_MODE || attribute == B_SCALE_MODE;
  if (mode && number && number != OUTER_VEC_32F) return NOT_SUPPORTED;
  if (attribute == A_SCALE_POINTER) desc->scaled_a = *(void* const*)value;
  if (attribute == B_SCALE_POINTER) desc->scaled_b = *(void* const*)value;
  if (attribute == 2) desc->epilogue = number;
  if (attribute == 4) desc->bias_type = number;
  return status(LT(cublasLtMatmulDescSetAttribute)(desc->cuda, found->second, value, bytes));
}

API hipblasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t columns,
                                int64_t ld) {
  if (type >= 1000) return NOT_SUPPORTED;  // AMD's own 8-bit floats, which no NVIDIA GPU has
  *made = new Layout{nullptr, nullptr, type, rows, columns, ld, 0, 1};
  if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2)
    LT(cublasLtMatrixLayoutCreate)(&(*made)->wide, CUDA_R_16BF, rows, columns, ld);
  return status(
      LT(cublasLtMatrixLayoutCreate)(&(*made)->cuda, (cudaDataType)type, rows, columns, ld));
}
API hipblasLtMatrixLayoutDestroy(Layout* layout) {
  LT(cublasLtMatrixLayoutDestroy)(layout->cuda);
  if (layout->wide) LT(cublasLtMatrixLayoutDestroy)(layout->wide);
  delete layout;
  return 0;
}
API hipblasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                      size_t bytes) {
  if (attribute > 1) return NOT_SUPPORTED;
  const auto same = attribute ? CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
                              : CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (attribute) memcpy(&layout->stride, value, 8);
  else memcpy(&layout->batch, value, 4);
  if (layout->wide) LT(cublasLtMatrixLayoutSetAttribute)(layout->wide, same, value, bytes);
  return status(LT(cublasLtMatrixLayoutSetAttribute)(layout->cuda, same, value, bytes));
}

API hipblasLtMatmulPreferenceCreate(Preference** made) { return *made = new Preference{0}, 0; }
API hipblasLtMatmulPreferenceDestroy(Preference* one) { return delete one, 0; }
API hipblasLtMatmulPreferenceSetAttribute(Preference* one, int attribute, const void* value,
                                          size_t bytes) {
  if (attribute == 1 && bytes == 8) memcpy(&one->workspace, value, 8);
  return attribute <= 1 ? 0 : INVALID_VALUE;
}

// -- solutions

static Result result_of(const Choice& choice) {
  Result result = {};
  memcpy(result.algorithm.data, &choice.index, 4);
  result.algorithm.max_workspace_bytes = result.workspace = choice.workspace;
  result.waves = choice.waves;
  return result;
}

API hipblasLtMatmulAlgoGetHeuristic(void*, const Desc* desc, const Layout* a, const Layout* b,
                                    const Layout* c, const Layout* d, const Preference* preference,
                                    int most, Result* results, int* count) {
  *count = 0;
  if (most < 1) return INVALID_VALUE;
  const Call call = call_of(desc, a, b, c, d);
  std::vector<Choice> found;
  const auto entries = overrides().equal_range(key_of(call));
  for (auto at = entries.first; at != entries.second; ++at) {
    Choice choice;
    if (!check(call, at->second, &choice) && choice.workspace <= preference->workspace)
      found.push_back(choice);
  }
  const size_t overridden = found.size();
  const cublasStatus_t code = choose(call, preference->workspace, most, &found);
  if (code && !overridden) return status(code);
  for (size_t i = 0; i < found.size() && *count < most; ++i) {
    bool again = false;
    for (size_t j = 0; j < i; ++j) again |= found[j].index == found[i].index;
    if (!again) results[(*count)++] = result_of(found[i]);
  }
  return *count ? 0 : NOT_SUPPORTED;
}

API hipblasLtMatmul(void*, const Desc* desc, const void* alpha, const void* A, const Layout* a,
                    const void* B, const Layout* b, const void* beta, const void* C,
                    const Layout* c, void* D, const Layout* d,
                    const _hipblasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                    cudaStream_t stream) {
  const Call call = call_of(desc, a, b, c, d);
  if (c->wide && *(const float*)beta != 0) return NOT_SUPPORTED;  // C is not bf16: it would be read
  Choice choice = {};
  if (algorithm) {
    int index;
    memcpy(&index, algorithm->data, 4);
    if (const cublasStatus_t code = check(call, index, &choice)) return status(code);
  } else {
    std::vector<Choice> found;
    if (const cublasStatus_t code = choose(call, bytes, 1, &found)) return status(code);
    if (found.empty()) return NOT_SUPPORTED;
    choice = found[0];
  }
  Log::get().add(desc, call, alpha, beta, choice.index);
  if (strtol(variable("TENSILE_DB", "0"), nullptr, 0) & 0x8000) {
    printf("Running kernel: %s\n", Catalogue::get().find(choice.index)->kernel_name().c_str());
    fflush(stdout);
  }
  // cuBLASLt takes D's address for C only if both have one layout.
  return status(LT(cublasLtMatmul)(lt_handle(), call.desc, alpha, A, call.a, B, call.b, beta,
                                   c->wide ? nullptr : C, call.c, D, call.d, &choice.algorithm,
                                   workspace, bytes, stream));
}

namespace hipblaslt_ext {
#define NAMING __attribute__((visibility("default"))) std::string
NAMING getSolutionNameFromAlgo(void*, _hipblasLtMatmulAlgo_t& algorithm) {
  int index;
  memcpy(&index, algorithm.data, 4);
  const Solution* solution = Catalogue::get().find(index);
  return solution ? solution->name() : "";
}
NAMING getKernelNameFromAlgo(void*, _hipblasLtMatmulAlgo_t& algorithm) {
  int index;
  memcpy(&index, algorithm.data, 4);
  const Solution* solution = Catalogue::get().find(index);
  return solution ? solution->kernel_name() : "";
}
}  // namespace hipblaslt_ext
