// Numbered solutions over cuBLASLt, as hipBLASLt and rocBLAS have them: a solution is one cuBLASLt
// algorithm with all its attributes for one combination of types and transposes.
//
// A solution's name is made of these and never changes. Its index is its line in a file beside
// the library, where every process adds what it meets first: stable, as in one build of ROCm.
//
//   SHIM_CATALOGUE       the file (default: solutions.txt beside the library)
//   SHIM_SHUFFLE_SEED=n  other indices for the same names, as in another build of ROCm: most old
//                        indices then name another solution
#pragma once
#include <cublasLt.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "shim.h"

inline void* libcublaslt() {
  static void* found = open_first({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
  return found;
}
#define LT(f) FROM(libcublaslt(), f)

inline cublasLtHandle_t lt_handle() {
  static cublasLtHandle_t handle = [] {
    cublasLtHandle_t made = nullptr;
    LT(cublasLtCreate)(&made);
    return made;
  }();
  return handle;
}

struct Types {  // CUDA's numbers; HIP's are the same, except for AMD's own 8-bit floats
  int a, b, c, d, compute, scale, transposed_a, transposed_b;
};

static const struct {
  const char* name;
  cublasLtMatmulAlgoConfigAttributes_t attribute;
  int bytes;
} attributes[] = {
    {"id", CUBLASLT_ALGO_CONFIG_ID, 4},
    {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {"splitk", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};
constexpr int ATTRIBUTES = sizeof attributes / sizeof attributes[0];

struct Solution {
  Types types;
  int values[ATTRIBUTES];  // -1 where the algorithm has no such attribute

  // As Tensile begins its names: which operands are transposed, and types by their letters.
  std::string name() const { return written(false); }
  // A kernel's name leaves out what only the host decides: solutions may share a kernel.
  std::string kernel_name() const { return written(true); }

 private:
  std::string written(bool kernel) const {
    std::ostringstream out;
    out << "Cijk_" << (types.transposed_a ? "Alik" : "Ailk") << "_"
        << (types.transposed_b ? "Bjlk" : "Bljk") << "_" << letter(types.a) << letter(types.b)
        << letter(types.c) << letter(types.d) << "_C" << types.compute << "S" << types.scale
        << (kernel ? "_SHIMK" : "_SHIM");
    for (int i = 0; i < ATTRIBUTES; ++i)
      if (values[i] >= 0 && !(kernel && attributes[i].attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM))
        out << "_" << attributes[i].name << values[i];
    return out.str();
  }

 public:
  static std::string letter(int type) {
    switch (type) {
      case CUDA_R_32F: return "S";
      case CUDA_R_64F: return "D";
      case CUDA_R_16F: return "H";
      case CUDA_R_16BF: return "B";
      case CUDA_R_8I: return "I8";
      case CUDA_R_32I: return "I";
      case CUDA_R_8F_E4M3: return "F8";
      case CUDA_R_8F_E5M2: return "B8";
      default: return "T" + std::to_string(type);
    }
  }

  cublasStatus_t algorithm(cublasLtMatmulAlgo_t* made) const {
    cublasStatus_t code = LT(cublasLtMatmulAlgoInit)(
        lt_handle(), (cublasComputeType_t)types.compute, (cudaDataType)types.scale,
        (cudaDataType)types.a, (cudaDataType)types.b, (cudaDataType)types.c,
        (cudaDataType)types.d, values[0], made);
    for (int i = 1; i < ATTRIBUTES && !code; ++i)
      if (values[i] >= 0)
        code = LT(cublasLtMatmulAlgoConfigSetAttribute)(made, attributes[i].attribute, &values[i],
                                                        attributes[i].bytes);
    return code;
  }
};

inline Solution describe(const Types& types, const cublasLtMatmulAlgo_t& algorithm) {
  Solution found = {types, {}};
  for (int i = 0; i < ATTRIBUTES; ++i) {
    int value = 0;
    size_t written = 0;
    const bool has = !LT(cublasLtMatmulAlgoConfigGetAttribute)(
        &algorithm, attributes[i].attribute, &value, attributes[i].bytes, &written);
    found.values[i] = has ? value : -1;
  }
  return found;
}

class Catalogue {
 public:
  static Catalogue& get() {
    static Catalogue one;
    return one;
  }

  int index(const Solution& solution) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string name = solution.name();
    if (!lines_.count(name)) add(name, solution);
    return 1 + (lines_[name] ^ mask());
  }

  // The place of a solution in the catalogue, which stays the same when indices are shuffled.
  static int line(int index) { return (index - 1) ^ mask(); }

  // The solution behind an index, or null.
  const Solution* find(int index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int at = line(index);
    if (index < 1) return nullptr;
    if (at >= (int)solutions_.size()) read();
    return at < (int)solutions_.size() ? &solutions_[at] : nullptr;
  }

 private:
  Catalogue() {
    Dl_info here;
    std::string folder = ".";
    if (dladdr((void*)&open_first, &here) && here.dli_fname) {
      const std::string file = here.dli_fname;
      folder = file.substr(0, file.rfind('/') + 1);
    }
    path_ = variable("SHIM_CATALOGUE", (folder + "solutions.txt").c_str());
    solutions_.reserve(1 << 16);  // pointers into it are handed out
    read();
  }

  static int mask() { return atoi(variable("SHIM_SHUFFLE_SEED", "0")) & 63; }

  void read() {
    std::ifstream file(path_);
    std::string line;
    for (size_t number = 0; std::getline(file, line); ++number) {
      if (number < solutions_.size()) continue;
      Solution one = {};
      std::istringstream words(line);
      std::string name;
      Types& t = one.types;
      words >> name >> t.a >> t.b >> t.c >> t.d >> t.compute >> t.scale >> t.transposed_a >>
          t.transposed_b;
      for (int& value : one.values) words >> value;
      lines_[name] = (int)number;
      solutions_.push_back(one);
    }
  }

  void add(const std::string& name, const Solution& one) {
    const int file = open(path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) {
      flock(file, LOCK_EX);
      read();  // what other processes have added
      if (!lines_.count(name)) {
        std::ostringstream line;
        const Types& t = one.types;
        line << name << ' ' << t.a << ' ' << t.b << ' ' << t.c << ' ' << t.d << ' ' << t.compute
             << ' ' << t.scale << ' ' << t.transposed_a << ' ' << t.transposed_b;
        for (const int value : one.values) line << ' ' << value;
        line << '\n';
        if (write(file, line.str().data(), line.str().size()) > 0) read();
      }
      close(file);
    }
    if (!lines_.count(name)) {  // no file can be written: this process alone
      lines_[name] = (int)solutions_.size();
      solutions_.push_back(one);
    }
  }

  std::mutex mutex_;
  std::string path_;
  std::map<std::string, int> lines_;
  std::vector<Solution> solutions_;
};

// hipBLASLt's and rocBLAS's words for types, as logs and override files have them.
inline std::string type_word(int type) {
  switch (type) {
    case CUDA_R_32F: return "f32_r";
    case CUDA_R_64F: return "f64_r";
    case CUDA_R_16F: return "f16_r";
    case CUDA_R_16BF: return "bf16_r";
    case CUDA_R_8I: return "i8_r";
    case CUDA_R_32I: return "i32_r";
    case CUDA_R_8F_E4M3: return "f8_r";
    case CUDA_R_8F_E5M2: return "bf8_r";
    default: return "invalid";
  }
}
inline std::string compute_word(int compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_16F: return "f16_r";
    case CUBLAS_COMPUTE_32F: return "f32_r";
    case CUBLAS_COMPUTE_32F_FAST_16F: return "f32_f16_r";
    case CUBLAS_COMPUTE_32F_FAST_16BF: return "f32_bf16_r";
    case CUBLAS_COMPUTE_32F_FAST_TF32: return "xf32_r";
    case CUBLAS_COMPUTE_64F: return "f64_r";
    case CUBLAS_COMPUTE_32I: return "i32_r";
    default: return "invalid";
  }
}

// A multiplication in cuBLASLt's descriptors, with the numbers that logs and overrides ask for.
struct Call {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c, d;
  Types types;
  uint64_t m, n, k;
  int64_t lda, ldb, ldc, ldd, stride_a, stride_b, stride_c, stride_d;
  int batch;
};

struct Choice {
  int index;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
  float waves;
};

// cuBLASLt's heuristic, best first.
inline cublasStatus_t choose(const Call& call, size_t workspace, int most,
                             std::vector<Choice>* found) {
  cublasLtMatmulPreference_t preference;
  cublasStatus_t code = LT(cublasLtMatmulPreferenceCreate)(&preference);
  if (code) return code;
  LT(cublasLtMatmulPreferenceSetAttribute)(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &workspace, sizeof workspace);
  std::vector<cublasLtMatmulHeuristicResult_t> results(most < 256 ? most : 256);
  int count = 0;
  code = LT(cublasLtMatmulAlgoGetHeuristic)(lt_handle(), call.desc, call.a, call.b, call.c, call.d,
                                            preference, (int)results.size(), results.data(),
                                            &count);
  LT(cublasLtMatmulPreferenceDestroy)(preference);
  for (int i = 0; i < count && !code; ++i)
    if (!results[i].state)
      found->push_back({Catalogue::get().index(describe(call.types, results[i].algo)),
                        results[i].algo, results[i].workspaceSize, results[i].wavesCount});
  return code;
}

// One solution for one call, or why it cannot compute it.
inline cublasStatus_t check(const Call& call, int index, Choice* found) {
  const Solution* solution = Catalogue::get().find(index);
  if (!solution || memcmp(&solution->types, &call.types, sizeof call.types))
    return CUBLAS_STATUS_INVALID_VALUE;
  found->index = index;
  cublasStatus_t code = solution->algorithm(&found->algorithm);
  if (code) return code;
  cublasLtMatmulHeuristicResult_t result;
  code = LT(cublasLtMatmulAlgoCheck)(lt_handle(), call.desc, call.a, call.b, call.c, call.d,
                                     &found->algorithm, &result);
  found->workspace = result.workspaceSize;
  found->waves = result.wavesCount;
  return code;
}
