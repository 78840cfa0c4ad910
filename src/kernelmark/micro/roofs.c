/* The limits of a CPU: multiply-adds a second and bytes a second, all threads together.
 *
 * Built as a shared library by the host's compiler for the host's own CPU. Sizes and repeats come
 * at run time. Every thread is pinned, first touches its own memory, waits at a barrier, and puts
 * a clock around its own work; a pass lasts from the first start to the last end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define CHAINS 24
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define CHAINS 12
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define CHAINS 24
#else
#define VECTOR_BYTES 16
#define CHAINS 12
#endif

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) || defined(__AVX512FP16__)
#define HAS_F16 1
typedef _Float16 half_t;
#else
#define HAS_F16 0
#endif

/* The instruction is asked for by name: left to itself, a compiler may make one product and many
 * sums of it, and count on none of them being a multiply-add. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define FMA_F32(x, y, acc) (fma_f32_vector) _mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(acc))
#define FMA_F64(x, y, acc) (fma_f64_vector) _mm512_fmadd_pd((__m512d)(x), (__m512d)(y), (__m512d)(acc))
#define FMA_F16(x, y, acc) (fma_f16_vector) _mm512_fmadd_ph((__m512h)(x), (__m512h)(y), (__m512h)(acc))
#elif defined(__AVX__) && defined(__FMA__)
#include <immintrin.h>
#define FMA_F32(x, y, acc) (fma_f32_vector) _mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(acc))
#define FMA_F64(x, y, acc) (fma_f64_vector) _mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(acc))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define FMA_F32(x, y, acc) \
    (fma_f32_vector) vfmaq_f32((float32x4_t)(acc), (float32x4_t)(x), (float32x4_t)(y))
#define FMA_F64(x, y, acc) \
    (fma_f64_vector) vfmaq_f64((float64x2_t)(acc), (float64x2_t)(x), (float64x2_t)(y))
#define FMA_F16(x, y, acc) \
    (fma_f16_vector) vfmaq_f16((float16x8_t)(acc), (float16x8_t)(x), (float16x8_t)(y))
#else
#define FMA_F32(x, y, acc) ((acc) + (x) * (y))
#define FMA_F64(x, y, acc) ((acc) + (x) * (y))
#endif

/* CHAINS independent accumulators cover latency x pipes and still fit the registers. They have names
 * of their own: an array of them may be written back to memory at every step. Starts and factors go
 * through volatiles, a factor at every step: a compiler that sees equal chains makes one of them, and
 * one that sees a product takes it out of the loop. */
#define TWELVE(DO, a) DO(a##0) DO(a##1) DO(a##2) DO(a##3) DO(a##4) DO(a##5) \
                      DO(a##6) DO(a##7) DO(a##8) DO(a##9) DO(a##10) DO(a##11)
#if CHAINS == 24
#define EVERY(DO) TWELVE(DO, acc) TWELVE(DO, more)
#else
#define EVERY(DO) TWELVE(DO, acc)
#endif
#define MAKE(acc) vector_t acc = start;
#define STEP_F32(acc) acc = FMA_F32(x, y, acc);
#define STEP_F64(acc) acc = FMA_F64(x, y, acc);
#define STEP_F16(acc) acc = FMA_F16(x, y, acc);
#define KEEP(acc) kept[chain++] = acc;

#define FMA_KERNEL(NAME, ELEMENT, STEP)                                                        \
    typedef ELEMENT NAME##_vector __attribute__((vector_size(VECTOR_BYTES)));                  \
    static __attribute__((noinline)) double NAME(int64_t steps) {                              \
        typedef NAME##_vector vector_t;                                                        \
        const int lanes = VECTOR_BYTES / (int)sizeof(ELEMENT);                                 \
        vector_t x, kept[CHAINS];                                                              \
        for (int l = 0; l < lanes; l++) x[l] = (ELEMENT)1;                                     \
        volatile vector_t factor = x, start = x - x;                                           \
        const vector_t y = factor;                                                             \
        EVERY(MAKE)                                                                            \
        for (int64_t s = 0; s < steps; s++) {                                                  \
            x = factor;                                                                        \
            EVERY(STEP)                                                                        \
        }                                                                                      \
        int chain = 0;                                                                         \
        EVERY(KEEP)                                                                            \
        double sum = 0;                                                                        \
        for (int i = 0; i < CHAINS; i++)                                                       \
            for (int l = 0; l < lanes; l++) sum += (double)kept[i][l];                         \
        return sum;                                                                            \
    }

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

FMA_KERNEL(fma_f32, float, STEP_F32)
FMA_KERNEL(fma_f64, double, STEP_F64)
#if HAS_F16
FMA_KERNEL(fma_f16, half_t, STEP_F16)
#endif

/* Memory: plain loops over doubles with no guard inside, so that the compiler vectorises them. */
typedef double wide_t __attribute__((vector_size(VECTOR_BYTES)));
#define WIDE ((int)(VECTOR_BYTES / sizeof(double)))

static double read_all(const double *restrict from, size_t count) {
    wide_t acc[8] = {{0}};
    const wide_t *p = (const wide_t *)from;
    for (size_t i = 0; i < count / WIDE; i += 8)
        UNROLL for (int j = 0; j < 8; j++) acc[j] += p[i + j];
    double sum = 0;
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < WIDE; l++) sum += acc[j][l];
    return sum;
}

static void copy_all(double *restrict to, const double *restrict from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = from[i];
}

static void triad_all(double *restrict to, const double *restrict a, const double *restrict b,
                      size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = a[i] + 3.0 * b[i];
}

/* A pass over memory takes one part of it, the next pass the next: passes are short, and what one
 * touched has left the caches when its turn comes again. */
#define PARTS 8

enum { FMA_F32, FMA_F64, FMA_F16, READ, COPY, TRIAD };

/* What a thread streams through, kept from call to call: new pages cost more than passes over them. */
typedef struct {
    double *memory;
    size_t bytes, used;
    int cpu, kind;                  /* whose first touch placed it, and who wrote to it last */
} store_t;

static store_t *stores;
static int store_count;
static pthread_mutex_t one_caller = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
    int kind, cpu, passes, failed, pinned;
    int64_t amount;                 /* steps of a chain, or doubles in one array of this thread */
    struct shared *shared;
    store_t *store;
    double sum;                     /* what the last pass computed, for the caller to verify */
    double *begin, *end;            /* one clock reading a pass */
} task_t;

struct shared {
    pthread_barrier_t barrier;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int pin(int cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

static double compute(const task_t *task, double *const whole[3], int pass) {
    const size_t count = (size_t)task->amount / PARTS;
    double *arrays[3];
    for (int a = 0; a < 3; a++)
        arrays[a] = whole[a] ? whole[a] + count * (size_t)(pass % PARTS) : NULL;
    switch (task->kind) {
    case FMA_F32: return fma_f32(task->amount);
    case FMA_F64: return fma_f64(task->amount);
#if HAS_F16
    case FMA_F16: return fma_f16(task->amount);
#endif
    case READ: return read_all(arrays[0], count);
    case COPY: copy_all(arrays[1], arrays[0], count); return arrays[1][count - 1];
    case TRIAD: triad_all(arrays[2], arrays[0], arrays[1], count); return arrays[2][count - 1];
    default: return -1;
    }
}

static void drop(store_t *store) {
    free(store->memory);
    *store = (store_t){0};
}

/* `bytes` of ones, first touched by this thread; 1 when memory is short. */
static int fill(store_t *store, size_t bytes, int kind, int cpu) {
    if (store->bytes < bytes || store->cpu != cpu) {
        drop(store);
        void *memory = NULL;
        if (posix_memalign(&memory, 2 << 20, bytes)) return 1;
#ifdef MADV_HUGEPAGE
        madvise(memory, bytes, MADV_HUGEPAGE); /* as the measured buffers do */
#endif
        *store = (store_t){.memory = memory, .bytes = bytes, .cpu = cpu, .kind = -1};
    }
    if (store->kind != kind || store->used != bytes)
        for (size_t i = 0; i < bytes / sizeof(double); i++) store->memory[i] = 1.0;
    store->kind = kind;
    store->used = bytes;
    return 0;
}

static void *work(void *argument) {
    task_t *task = argument;
    task->pinned = pin(task->cpu);
    double *arrays[3] = {NULL, NULL, NULL};
    const int needed = task->kind == READ ? 1 : task->kind == COPY ? 2 : task->kind == TRIAD ? 3 : 0;
    const size_t each = (size_t)task->amount;
    if (needed) task->failed = fill(task->store, needed * each * sizeof(double), task->kind, task->cpu);
    for (int a = 0; a < needed && !task->failed; a++) arrays[a] = task->store->memory + a * each;
    for (int p = 0; p < task->passes; p++) {
        pthread_barrier_wait(&task->shared->barrier);
        task->begin[p] = now();
        if (!task->failed) task->sum = compute(task, arrays, p);
        task->end[p] = now();
    }
    return NULL;
}

/* 0 when done, 1 when memory or threads are short. `whole` takes the seconds of the shortest pass
 * from the first start to the last end, `alone` each thread's own shortest one, `sum` the total of
 * what the threads computed in the last pass. Threads that share a core take turns, each as fast as
 * if it had the core for itself: then `alone` is `whole`, so that nobody can add them up. */
static int roof(int kind, int threads, const int *cpus, int64_t amount, int passes, double *whole,
                double *alone, double *sum) {
    struct shared *shared = calloc(1, sizeof *shared);
    task_t *tasks = calloc((size_t)threads, sizeof *tasks);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    double *clocks = calloc((size_t)threads * (size_t)passes * 2, sizeof *clocks);
    if (!shared || !tasks || !handles || !clocks) return 1;
    pthread_barrier_init(&shared->barrier, NULL, (unsigned)threads);
    for (int t = 0; t < threads; t++) {
        tasks[t] = (task_t){.kind = kind, .cpu = cpus[t], .passes = passes, .amount = amount,
                            .shared = shared, .store = &stores[t], .begin = clocks + (size_t)t * 2 * (size_t)passes};
        tasks[t].end = tasks[t].begin + passes;
        if (pthread_create(&handles[t], NULL, work, &tasks[t])) {
            /* The threads before it wait at the barrier for ever: what they use must stay. */
            stores = NULL;
            store_count = 0;
            return 1;
        }
    }
    int failed = 0, shared_core = 0;
    *sum = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(handles[t], NULL);
        failed |= tasks[t].failed;
        shared_core |= !tasks[t].pinned;
        for (int other = 0; other < t; other++) shared_core |= cpus[other] == cpus[t];
        *sum += tasks[t].sum;
    }
    *whole = 1e300;
    for (int t = 0; t < threads; t++) alone[t] = 1e300;
    for (int p = 0; p < passes; p++) {
        double first = 1e300, last = 0;
        for (int t = 0; t < threads; t++) {
            const double begin = tasks[t].begin[p], end = tasks[t].end[p];
            first = begin < first ? begin : first;
            last = end > last ? end : last;
            alone[t] = end - begin < alone[t] ? end - begin : alone[t];
        }
        *whole = last - first < *whole ? last - first : *whole;
    }
    for (int t = 0; t < threads; t++) alone[t] = shared_core ? *whole : alone[t];
    pthread_barrier_destroy(&shared->barrier);
    free(shared);
    free(tasks);
    free(handles);
    free(clocks);
    return failed;
}

/* Room for the stores of so many threads; 0 when done. */
static int make_room(int threads) {
    if (threads <= store_count) return 0;
    store_t *more = realloc(stores, (size_t)threads * sizeof *stores);
    if (!more) return 1;
    stores = more;
    for (; store_count < threads; store_count++) stores[store_count] = (store_t){0};
    return 0;
}

int kmark_roof(int kind, int threads, const int *cpus, int64_t amount, int passes,
               double *whole, double *alone, double *sum) {
    pthread_mutex_lock(&one_caller);
    const int failed =
        make_room(threads) || roof(kind, threads, cpus, amount, passes, whole, alone, sum);
    pthread_mutex_unlock(&one_caller);
    return failed;
}

/* Give back what was kept. */
void kmark_release(void) {
    pthread_mutex_lock(&one_caller);
    for (int t = 0; t < store_count; t++) drop(&stores[t]);
    free(stores);
    stores = NULL;
    store_count = 0;
    pthread_mutex_unlock(&one_caller);
}

int kmark_vector_bytes(void) { return VECTOR_BYTES; }
int kmark_chains(void) { return CHAINS; }
int kmark_parts(void) { return PARTS; }
int kmark_has_f16(void) { return HAS_F16; }
