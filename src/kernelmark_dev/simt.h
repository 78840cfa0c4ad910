// A GPU's way of running threads, on one thread of the host: every thread of a block is a fiber
// that runs until it waits for the others or looks at a clock. For checking kernels and the code
// around them where there is no GPU; what it takes says nothing about one.
// Fortified, longjmp refuses to go from one stack to another.
#undef _FORTIFY_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" void
#define DEVICE inline
#define GLOBAL
#define LANES 32
#define BLOCK_OF(threads)
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)

struct Index {
  u32 x, y;
};
static Index threadIdx, blockIdx, blockDim, gridDim;
static u32 simt_units = 1;

enum { RUNNING, WAITING, LOOKING, DONE };
#define STACK_BYTES (64 * 1024)
// One whose thread is over waits for the next thread: to make one takes two system calls.
struct Stack {
  jmp_buf place;
  Stack* next;
  char bytes[STACK_BYTES];
};
struct Fiber {
  Stack* stack;
  int state;
  u32 thread, block;
};
static Fiber* simt_now;
static jmp_buf simt_home;

// Unlike swapcontext, _setjmp and _longjmp leave the signal mask alone, a system call each time.
static __attribute__((noinline)) void simt_yield(int state) {
  simt_now->state = state;
  if (!_setjmp(simt_now->stack->place)) _longjmp(simt_home, 1);
  threadIdx.x = simt_now->thread;
  blockIdx.x = simt_now->block;
}
static inline void __syncthreads() { simt_yield(WAITING); }
static inline u64 wall_clock() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}
// A spinning thread looks at the clock: let the others go on meanwhile. One gigahertz.
static inline u64 core_clock() {
  simt_yield(LOOKING);
  return wall_clock();
}
static inline u32 unit_id() { return blockIdx.x % simt_units; }
static inline void fence_device() {}
static inline u32 compare_swap(u32* place, u32 old, u32 fresh) {
  const u32 found = *place;
  if (found == old) *place = fresh;
  return found;
}
static inline u32 read_fresh(u32* place) { return *(volatile u32*)place; }
template <typename T, typename V>
static inline T atomicAdd(T* place, V value) {
  const T found = *place;
  *place = found + (T)value;
  return found;
}

struct alignas(16) quad {
  u32 x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
typedef float4 real4;
struct alignas(16) pair {
  double x, y;
};
DEVICE pair operator+(pair a, pair b) { return pair{a.x + b.x, a.y + b.y}; }
DEVICE pair operator*(pair a, pair b) { return pair{a.x * b.x, a.y * b.y}; }
DEVICE pair operator*(double q, pair b) { return pair{q * b.x, q * b.y}; }
DEVICE real4 operator+(real4 a, real4 b) {
  return real4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
DEVICE real4 operator*(real4 a, real4 b) {
  return real4{a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
DEVICE real4 operator*(float q, real4 b) { return real4{q * b.x, q * b.y, q * b.z, q * b.w}; }
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }
DEVICE u32 fold(quad v) { return (v.x + v.y) + (v.z + v.w); }
DEVICE double fold(pair v) { return v.x + v.y; }
DEVICE float fold(real4 v) { return (v.x + v.y) + (v.z + v.w); }
DEVICE pair spread(double q) { return pair{q, q}; }
DEVICE real4 spread4(float q) { return real4{q, q, q, q}; }
typedef u32 Total;
#define TOTALS 1
DEVICE void gather(Total& total, quad v) { total += fold(v); }
DEVICE u32 finish(Total total) { return total; }
struct Walk {
  u64 first, end, step;
};
DEVICE Walk walk(u64 count) {
  return Walk{(u64)blockIdx.x * blockDim.x + threadIdx.x, count, (u64)gridDim.x * blockDim.x};
}
DEVICE u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
// The same in groups of COUNT elements that a thread takes at once: a warp's group is one piece of
// memory. Blocks are whole warps.
struct Tiles {
  u64 first, end, step;
  enum { near = LANES };
};
template <u32 COUNT>
DEVICE Tiles tiles(u64 count) {
  Tiles t;
  t.first = thread_number() / LANES * (COUNT * LANES) + threadIdx.x % LANES;
  t.end = count;
  t.step = (u64)gridDim.x * blockDim.x * COUNT;
  return t;
}
DEVICE u64 start_block() {
  __syncthreads();
  return core_clock();
}
#define STAMPS 64
DEVICE void stop_block(u64* clocks, u64 begin, u64*) {
  __syncthreads();
  const u64 end = core_clock();
  if (threadIdx.x == 0) {
    clocks[2 * blockIdx.x] = begin;
    clocks[2 * blockIdx.x + 1] = end;
  }
}

// -- the scheduler

typedef void (*Entry)(void**);
static Entry simt_entry;
static void** simt_arguments;
static Stack* simt_idle;

static void simt_begin() {
  simt_yield(RUNNING);
  for (;;) {
    simt_entry(simt_arguments);
    simt_yield(DONE);
  }
}

// A stack for a fiber that has none yet; whether there was memory for it.
static bool simt_take(Fiber* fiber) {
  fiber->stack = simt_idle;
  if (fiber->stack) {
    simt_idle = fiber->stack->next;
    return true;
  }
  fiber->stack = (Stack*)malloc(sizeof(Stack));
  if (!fiber->stack) return false;
  fiber->stack->next = 0;
  simt_now = fiber;
  if (_setjmp(simt_home)) return true;
  static ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber->stack->bytes;
  start.uc_stack.ss_size = STACK_BYTES;
  makecontext(&start, simt_begin, 0);
  setcontext(&start);
  return false;
}

static __attribute__((noinline)) void simt_resume(Fiber* fiber) {
  simt_now = fiber;
  fiber->state = RUNNING;
  if (!_setjmp(simt_home)) _longjmp(fiber->stack->place, 1);
}

// One turn for every fiber of a block; whether any of them got anywhere.
static bool simt_turn(Fiber* fibers, u32 count) {
  bool moved = false;
  u32 waiting = 0, alive = 0;
  for (u32 i = 0; i < count; ++i) {
    Fiber* fiber = fibers + i;
    if (fiber->state == RUNNING || fiber->state == LOOKING) {
      simt_resume(fiber);
      moved = moved || fiber->state != LOOKING;
    }
    alive += fiber->state != DONE;
    waiting += fiber->state == WAITING;
  }
  if (alive && waiting == alive) {
    for (u32 i = 0; i < count; ++i)
      if (fibers[i].state == WAITING) fibers[i].state = RUNNING;
    moved = true;
  }
  return moved;
}

// Which line of a grid with several lines the next run is.
extern "C" void simt_line(u32 y) { blockIdx.y = y; }

// Block after block; one that only looks at clocks makes room for the next. 1 without memory.
extern "C" int simt_run(Entry entry, void** arguments, u32 grid, u32 block, u32 units) {
  Fiber* fibers = (Fiber*)calloc((size_t)grid * block, sizeof(Fiber));
  u8* ended = (u8*)calloc(grid, 1);
  if (!fibers || !ended) return 1;
  simt_entry = entry;
  simt_arguments = arguments;
  blockDim.x = block;
  gridDim.x = grid;
  simt_units = units;
  for (u32 left = grid; left;) {
    for (u32 b = 0; b < grid; ++b) {
      if (ended[b]) continue;
      Fiber* mine = fibers + (size_t)b * block;
      for (u32 t = 0; t < block && !mine[t].stack; ++t) {
        mine[t].thread = t;
        mine[t].block = b;
        if (!simt_take(mine + t)) return 1;
      }
      u32 patience = 4;
      while (patience) {
        patience = simt_turn(mine, block) ? 4 : patience - 1;
        u32 done = 0;
        for (u32 t = 0; t < block; ++t) done += mine[t].state == DONE;
        if (done == block) {
          ended[b] = 1;
          --left;
          for (u32 t = 0; t < block; ++t) {
            mine[t].stack->next = simt_idle;
            simt_idle = mine[t].stack;
          }
          break;
        }
      }
    }
  }
  free(fibers);
  free(ended);
  return 0;
}
