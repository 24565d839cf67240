/* ---- Steps: modes of the processor, places, whole numbers ---- */

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* Before a loop no element of which depends on another one. */
#if defined(__clang__)
#define OP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define OP_INDEPENDENT _Pragma("GCC ivdep")
#else
#define OP_INDEPENDENT
#endif

/* Denormal numbers count as 0 while a step runs: processors take up to a hundred times as long for them. */
#if defined(__SSE2__)
typedef unsigned op_mode;
OP_INLINE op_mode op_flush_denormals(void) {
  const op_mode mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040u);
  return mode;
}
OP_INLINE void op_restore(op_mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__) && defined(__GNUC__)
typedef uint64_t op_mode;
OP_INLINE op_mode op_flush_denormals(void) {
  op_mode mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  __asm__ volatile("msr fpcr, %0" : : "r"(mode | (UINT64_C(1) << 24)));
  return mode;
}
OP_INLINE void op_restore(op_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
typedef int op_mode;
OP_INLINE op_mode op_flush_denormals(void) { return 0; }
OP_INLINE void op_restore(op_mode mode) { (void)mode; }
#endif

/* An index that counts from the end where it is negative, and never leaves its axis. */
OP_INLINE int64_t op_place(int64_t i, int64_t size) {
  const int64_t from_start = i < 0 ? i + size : i;
  return from_start < 0 ? 0 : from_start >= size ? size - 1 : from_start;
}

/* Whether a whole number leaves a range, of an element at least: one comparison, as what is below it wraps around. */
#define OP_OUTSIDE(i, low, high) ((uint64_t)(i) - (uint64_t)(low) > (uint64_t)(high) - (uint64_t)(low))

/* A bound that is a number: NaN stays what it is. */
#define OP_BOUNDS(T, S) \
  OP_INLINE T op_at_least_##S(T x, T bound) { return x < bound ? bound : x; } \
  OP_INLINE T op_at_most_##S(T x, T bound) { return x > bound ? bound : x; }
OP_BOUNDS(float, f)
OP_BOUNDS(double, d)

#define OP_WHOLE(T, S) \
  OP_BOUNDS(T, S) \
  OP_INLINE T op_max_##S(T x, T y) { return x > y ? x : y; } \
  OP_INLINE T op_min_##S(T x, T y) { return x < y ? x : y; }
OP_WHOLE(int64_t, i64)
OP_WHOLE(int32_t, i32)
OP_WHOLE(int16_t, i16)
OP_WHOLE(int8_t, i8)
OP_WHOLE(uint64_t, u64)
OP_WHOLE(uint32_t, u32)
OP_WHOLE(uint16_t, u16)
OP_WHOLE(uint8_t, u8)
OP_INLINE int64_t op_abs_i64(int64_t x) { return x < 0 ? (int64_t)-(uint64_t)x : x; }
OP_INLINE int32_t op_abs_i32(int32_t x) { return x < 0 ? (int32_t)-(uint32_t)x : x; }
OP_INLINE int64_t op_sign_i64(int64_t x) { return (x > 0) - (x < 0); }
OP_INLINE int32_t op_sign_i32(int32_t x) { return (x > 0) - (x < 0); }
