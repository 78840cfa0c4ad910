// What CUDA and HIP spell differently. NVRTC and hipRTC both predefine the index variables.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void

// A counter that runs at the core clock, and one that runs at a fixed rate.
#if defined(__GFX11__)
// The counter there has 20 bits, which pass within a millisecond. Limits of waits go by the wall
// clock's 100 MHz instead, at about the pace of a core; nothing that is told may be in its cycles.
#define NO_CORE_CLOCK
__device__ inline u64 core_clock() { return (u64)wall_clock64() * 20u; }
#else
__device__ inline u64 core_clock() { return (u64)clock64(); }
#endif
#if defined(__HIP_DEVICE_COMPILE__) || defined(__HIP__)
__device__ inline u64 wall_clock() { return (u64)wall_clock64(); }
// Shader engine, array and compute unit; core clocks of different chiplets do not compare either.
__device__ inline u32 unit_id() {
  u32 id;
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID1)" : "=s"(id));
  return ((id >> 18) & 7u) * 64u + ((id >> 16) & 1u) * 32u + ((id >> 9) & 31u);
#else
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID)" : "=s"(id));
  id = (id >> 8) & 255u;
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
  u32 chiplet;
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_XCC_ID)" : "=s"(chiplet));
  id += (chiplet & 15u) * 256u;
#endif
  return id;
#endif
}
#else
__device__ inline u64 wall_clock() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
__device__ inline u32 unit_id() {
  u32 id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
#endif
