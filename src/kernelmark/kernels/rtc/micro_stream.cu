// The classic streams over main memory, in double precision, 16 bytes a load, four of each array
// in flight in every thread. `n` counts vectors of the platform (16 bytes on a GPU).
#define IN_FLIGHT 4

// a[i] = value(i): the loads of a group are all issued before its first store.
template <typename V>
DEVICE void store(pair* a, u64 n, V value) {
  const Tiles t = tiles<IN_FLIGHT>(n);
  u64 i = t.first;
#pragma unroll 1
  for (; i + (IN_FLIGHT - 1) * t.near < t.end; i += t.step) {
    pair v[IN_FLIGHT];
#pragma unroll
    for (u32 k = 0; k < IN_FLIGHT; ++k) v[k] = value(i + k * t.near);
#pragma unroll
    for (u32 k = 0; k < IN_FLIGHT; ++k) a[i + k * t.near] = v[k];
  }
  for (; i < t.end; i += t.near) a[i] = value(i);
}

// The sum of value(i), one for each thread.
template <typename V>
DEVICE void sum(double* sums, u64 n, V value) {
  const Tiles t = tiles<2 * IN_FLIGHT>(n);
  u64 i = t.first;
  pair total[IN_FLIGHT];
#pragma unroll
  for (u32 k = 0; k < IN_FLIGHT; ++k) total[k] = spread(0.0);
#pragma unroll 1
  for (; i + (2 * IN_FLIGHT - 1) * t.near < t.end; i += t.step) {
    pair v[2 * IN_FLIGHT];
#pragma unroll
    for (u32 k = 0; k < 2 * IN_FLIGHT; ++k) v[k] = value(i + k * t.near);
#pragma unroll
    for (u32 k = 0; k < 2 * IN_FLIGHT; ++k) total[k % IN_FLIGHT] = total[k % IN_FLIGHT] + v[k];
  }
  for (; i < t.end; i += t.near) total[0] = total[0] + value(i);
  sums[thread_number()] = fold((total[0] + total[1]) + (total[2] + total[3]));
}

// b[i] is a small whole number, the same on every platform: sums of them are exact.
KERNEL stream_fill(double* b, u64 first, u64 n, u32 period) {
  const Walk w = walk(n);
  for (u64 i = w.first; i < w.end; i += w.step) b[first + i] = (double)(u32)((first + i) % period);
}

KERNEL BLOCK_OF(1024) stream_init(pair* a, u64 n, double q) {
  store(a, n, [=](u64) { return spread(q); });
}
KERNEL BLOCK_OF(1024) stream_copy(pair* a, const pair* b, u64 n) {
  store(a, n, [=](u64 i) { return b[i]; });
}
KERNEL BLOCK_OF(1024) stream_scale(pair* a, const pair* b, u64 n, double q) {
  store(a, n, [=](u64 i) { return q * b[i]; });
}
KERNEL BLOCK_OF(1024) stream_add(pair* a, const pair* b, const pair* c, u64 n) {
  store(a, n, [=](u64 i) { return b[i] + c[i]; });
}
KERNEL BLOCK_OF(1024)
stream_triad(pair* a, const pair* b, const pair* c, u64 n, double q) {
  store(a, n, [=](u64 i) { return b[i] + q * c[i]; });
}
KERNEL BLOCK_OF(1024)
stream_schoenauer(pair* a, const pair* b, const pair* c, const pair* d, u64 n) {
  store(a, n, [=](u64 i) { return b[i] + c[i] * d[i]; });
}
KERNEL BLOCK_OF(1024) stream_read(const pair* b, double* sums, u64 n) {
  sum(sums, n, [=](u64 i) { return b[i]; });
}
KERNEL BLOCK_OF(1024) stream_dot(const pair* b, const pair* c, double* sums, u64 n) {
  sum(sums, n, [=](u64 i) { return b[i] * c[i]; });
}

// Stencils along one dimension; `b` has room for its neighbours at both ends. Each double is an
// element here, since a vector's neighbours do not lie on vector boundaries.
template <int REACH>
DEVICE void stencil(double* a, const double* b, u64 n, double q) {
  const Walk w = walk(n);
#pragma unroll 4
  for (u64 i = w.first; i < w.end; i += w.step) {
    double total = b[i];
#pragma unroll
    for (int r = 1; r <= REACH; ++r) total += b[(long long)i - r] + b[i + r];
    a[i] = q * total;
  }
}
KERNEL BLOCK_OF(1024) stream_stencil3(double* a, const double* b, u64 n, double q) {
  stencil<1>(a, b, n, q);
}
KERNEL BLOCK_OF(1024) stream_stencil5(double* a, const double* b, u64 n, double q) {
  stencil<2>(a, b, n, q);
}

#ifdef HOST
// What the C library makes of a copy.
KERNEL stream_memcpy(u8* a, const u8* b, u64 n) {
  const Walk w = walk(n);
  memcpy(a + w.first, b + w.first, w.end - w.first);
}
#endif
