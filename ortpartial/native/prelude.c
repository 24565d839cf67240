/* What the steps that ortpartial writes in C99 have in common: vectors, mathematical functions, products of matrices.

   Every function of elements is one expression without branches, so that compilers vectorize the loops that call it.
   Those of floats (suffix _f) have a relative error of at most 2 FLT_EPSILON, op_pow_f of 4; those of doubles (_d) are
   the C library's. Coefficients are of minimax polynomials. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define OP_INLINE static inline __attribute__((always_inline, unused))
#else
#define OP_INLINE static inline
#endif

#if defined(__cplusplus) && !defined(restrict)
#define restrict __restrict
#endif

typedef intptr_t op_index;

/* ---- Vectors: OP_LANES floats, or half as many doubles ---- */

#ifndef OP_LANES
#if !defined(__GNUC__)
#define OP_LANES 1
#elif defined(__AVX512F__)
#define OP_LANES 16
#elif defined(__AVX__)
#define OP_LANES 8
#elif defined(__SSE2__) || defined(__ARM_NEON)
#define OP_LANES 4
#else
#define OP_LANES 1
#endif
#endif

#define V_FLOAT OP_LANES
#define V_DOUBLE (OP_LANES > 1 ? OP_LANES / 2 : 1)

/* Vector registers. A compiler keeps what is summed up in them. */
#ifndef OP_REGISTERS
#if OP_LANES == 16 || OP_LANES == 1 || defined(__aarch64__)
#define OP_REGISTERS 32
#else
#define OP_REGISTERS 16
#endif
#endif

/* Vectors may stand at any element of an array. */
#define OP_VECTOR(T, LANES) __attribute__((vector_size(sizeof(T) * (LANES)), aligned(sizeof(T)), may_alias)) T
#if OP_LANES >= 4
typedef OP_VECTOR(float, 2) op_float2;
typedef OP_VECTOR(float, 4) op_float4;
typedef OP_VECTOR(double, 2) op_double2;
typedef OP_VECTOR(int32_t, 2) op_int2;
typedef OP_VECTOR(int32_t, 4) op_int4;
typedef OP_VECTOR(int64_t, 2) op_long2;
#endif
#if OP_LANES >= 8
typedef OP_VECTOR(float, 8) op_float8;
typedef OP_VECTOR(double, 4) op_double4;
typedef OP_VECTOR(int32_t, 8) op_int8;
typedef OP_VECTOR(int64_t, 4) op_long4;
#endif
#if OP_LANES >= 16
typedef OP_VECTOR(float, 16) op_float16;
typedef OP_VECTOR(double, 8) op_double8;
typedef OP_VECTOR(int32_t, 16) op_int16;
typedef OP_VECTOR(int64_t, 8) op_long8;
#endif

/* ---- Elements: float ---- */

OP_INLINE uint32_t op_bits_f(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

OP_INLINE float op_from_bits_f(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits of a number rounded to bfloat16, to the nearest with ties to even; NaN stays NaN. */
OP_INLINE uint32_t op_round_bits(float x) {
    const uint32_t bits = op_bits_f(x);
    return (x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
}

OP_INLINE float op_round_bfloat16(float x) { return op_from_bits_f(op_round_bits(x)); }

/* Added to a number, it leaves the nearest integer in the last bits of the sum. */
#define OP_ROUNDING_F 12582912.0f

/* e^r for |r| <= log(2) / 2 is 1 + r + r^2 q(r). */
OP_INLINE float op_exp_q_f(float r) {
    return 0.49999994f + r * (0.166665211f + r * (0.041668389f + r * (0.00836871658f + r * 0.00138145988f)));
}

/* 2^n e^r: the power of 2 has two factors, so that the result may be denormal or overflow. */
OP_INLINE float op_exp_f(float x) {
    const float bounded = x < -104.0f ? -104.0f : x;
    const float y = bounded > 104.0f ? 104.0f : bounded;
    const float shifted = y * 1.44269504f + OP_ROUNDING_F;
    const float n = shifted - OP_ROUNDING_F;
    const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    const uint32_t power = op_bits_f(shifted) - (op_bits_f(OP_ROUNDING_F) - 256u);
    const uint32_t half = power >> 1;
    const float first = op_from_bits_f((half - 1u) << 23), second = op_from_bits_f((power - half - 1u) << 23);
    return (1.0f + (r + r * r * op_exp_q_f(r))) * first * second;
}

/* 2^n (e^r - 1) + (2^n - 1) */
OP_INLINE float op_expm1_f(float x) {
    const float low = x < -20.0f ? -20.0f : x;
    const float y = low > 89.0f ? 89.0f : low;
    const float shifted = y * 1.44269504f + OP_ROUNDING_F;
    const float n = shifted - OP_ROUNDING_F;
    const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    const float half = op_from_bits_f((op_bits_f(shifted) - (op_bits_f(OP_ROUNDING_F) - 126u)) << 23);
    const float q = 0.5f + r * (0.166666657f + r * (0.0416663624f + r * (0.00833338965f + r * (0.00139406277f
                    + r * 0.000198458773f))));
    const float p = r + r * r * q;
    return n == 0.0f ? p : 2.0f * (half * p + (half - 0.5f));
}

/* e log(2) + log(1 + f) for -1/3 <= f <= 1/3 */
OP_INLINE float op_log_sum_f(float f, float e) {
    const float p = 0.333333343f + f * (-0.249998197f + f * (0.19999598f + f * (-0.16679579f + f * (0.143044561f
                    + f * (-0.121957764f + f * (0.107542366f + f * (-0.128450662f + f * 0.120071478f)))))));
    return e * 0.693359375f + (f + (f * f * (f * p - 0.5f) - e * 2.12194440e-4f));
}

/* x = 2^e (1 + f) */
OP_INLINE float op_log_f(float x) {
    const float y = x < FLT_MIN ? x * 8388608.0f : x;
    const uint32_t power = (op_bits_f(y) - 0x3f2aaaabu) & 0xff800000u;
    const float e = (float)(int32_t)power * 1.1920929e-7f - (x < FLT_MIN ? 23.0f : 0.0f);
    const float z = op_log_sum_f(op_from_bits_f(op_bits_f(y) - power) - 1.0f, e);
    const float positive = x <= FLT_MAX ? z : x;
    const float from_zero = x == 0.0f ? -INFINITY : positive;
    return x < 0.0f ? NAN : from_zero;
}

/* log(u + c), where u is 1 + x rounded and c is what rounding lost */
OP_INLINE float op_log1p_f(float x) {
    const float u = 1.0f + x;
    const float c = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    const uint32_t power = (op_bits_f(u) - 0x3f2aaaabu) & 0xff800000u;
    const float f = op_from_bits_f(op_bits_f(u) - power) - 1.0f;
    const uint32_t limited = (int32_t)power > 0x3f000000 ? 0x3f000000u : power;
    const float z = op_log_sum_f(f + c * op_from_bits_f(0x3f800000u - limited), (float)(int32_t)power * 1.1920929e-7f);
    const float positive = u <= FLT_MAX ? z : u;
    const float from_zero = u == 0.0f ? -INFINITY : positive;
    return u < 0.0f ? NAN : x == 0.0f ? x : from_zero;
}

OP_INLINE float op_sigmoid_f(float x) {
    const float e = op_exp_f(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

OP_INLINE float op_softplus_f(float x) {
    return (x > 0.0f ? x : 0.0f) + op_log1p_f(op_exp_f(-fabsf(x)));
}

OP_INLINE float op_tanh_f(float x) {
    const float y = fabsf(x), s = x * x;
    const float p = -0.333332807f + s * (0.133314416f + s * (-0.0537397154f + s * (0.0206390861f
                    + s * -0.00570498686f)));
    const float large = 1.0f - 2.0f / (op_exp_f(2.0f * y) + 1.0f);
    return copysignf(y < 0.625f ? y + y * s * p : large, x);
}

OP_INLINE float op_erf_f(float x) {
    const float y = fabsf(x), s = x * x, t = y > 4.0f ? 4.0f : y;
    const float p = 0.128379166f + s * (-0.376126319f + s * (0.112836875f + s * (-0.0268589407f + s * (0.00519990688f
                    + s * (-0.000813001301f + s * 8.31677535e-05f)))));
    const float u = 0.12864852f + t * (0.635151327f + t * (0.106236875f + t * (-0.0237620603f + t * (0.00364245754f
                    + t * (-0.000322803447f + t * 1.12312628e-05f)))));
    const float large = 1.0f - op_exp_f(-(t + t * u));
    return copysignf(y < 0.92f ? y + y * p : large, x);
}

/* x 2/pi, modulo 4 twice: 2/pi in pieces of 28 bits, whose products with a float are exact in double. */
OP_INLINE double op_quarters_f(float x) {
    const double a = x * 0x1.45f306cp-1, b = x * 0x1.c9c882ap-29, c = x * 0x1.4fe13a8p-59, d = x * 0x1.f47d4dp-86;
    const double e = x * 0x1.bb81b6cp-113, f = x * 0x1.4acc9ep-143, g = x * 0x1.0e4107cp-170;
    const double high = (a - 4.0 * rint(0.25 * a)) + (b - 4.0 * rint(0.25 * b));
    const double low = (c - 4.0 * rint(0.25 * c)) + (d - 4.0 * rint(0.25 * d));
    return (high + low) + ((e - 4.0 * rint(0.25 * e)) + (f - 4.0 * rint(0.25 * f)) + g);
}

/* sin(quarters pi/2) */
OP_INLINE float op_sin_quarters_f(double quarters) {
    const double shifted = quarters + 0x1.8p52;
    const float r = (float)((quarters - (shifted - 0x1.8p52)) * 1.5707963267948966), s = r * r;
    const float sine = r + r * s * (-0.166666552f + s * (0.0083321603f + s * -0.000195152184f));
    const float cosine = 1.0f + s * (-0.5f + s * (0.0416666456f + s * (-0.00138873153f + s * 2.44330822e-05f)));
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return op_from_bits_f(op_bits_f(bits & 1u ? cosine : sine) ^ ((uint32_t)(bits & 2u) << 30));
}

OP_INLINE float op_sin_f(float x) { return op_sin_quarters_f(op_quarters_f(x)); }

OP_INLINE float op_cos_f(float x) { return op_sin_quarters_f(op_quarters_f(x) + 1.0); }

/* atan(x) = pi/2 - atan(1/x) */
OP_INLINE float op_atan_f(float x) {
    const float y = fabsf(x), z = y > 1.0f ? 1.0f / y : y, s = z * z;
    const float p = -0.333332986f + s * (0.199985489f + s * (-0.142642424f + s * (0.109521858f + s * (-0.0840345025f
                    + s * (0.0579575934f + s * (-0.0311778467f + s * (0.010914606f + s * -0.00179362181f)))))));
    const float angle = z + z * s * p;
    return copysignf(y > 1.0f ? 1.57079633f - angle : angle, x);
}

/* 2^(y log2 |x|), computed in double */
OP_INLINE float op_pow_f(float x, float y) {
    const double size = fabsf(x), limited = y > FLT_MAX ? FLT_MAX : y < -FLT_MAX ? -FLT_MAX : y;
    uint64_t bits, power, scale;
    double m, e, two_n;
    memcpy(&bits, &size, sizeof bits);
    power = (bits - 0x3fe5555555555555u) & 0xfff0000000000000u;
    bits -= power;
    memcpy(&m, &bits, sizeof m);
    power = ((power >> 52) ^ 0x800u) | 0x4330000000000000u; /* 2^52 + e + 2048, as the 12 bits of e have a sign */
    memcpy(&e, &power, sizeof e);
    const double f = (m - 1.0) / (m + 1.0), s = f * f;
    const double p = 2.8853900817774272 + s * (0.9617966948253901 + s * (0.57707775558966012 + s * (0.41222617455404797
                     + s * (0.31928498033690556 + s * 0.29083210106319712))));
    const double finite = (e - 4503599627372544.0) + f * p;
    const double log2 = size == 0.0 ? -1e300 : size <= FLT_MAX ? finite : 1e300;
    const double t = limited * log2, low = t < -200.0 ? -200.0 : t, z = low > 200.0 ? 200.0 : low;
    const double shifted = z + 0x1.8p52, r = z - (shifted - 0x1.8p52);
    const double q = 0.99999999996168343 + r * (0.69314718072844539 + r * (0.24022651198158398
                     + r * (0.055504103534531314 + r * (0.0096180272535475782 + r * (0.00133339225580674
                     + r * (0.00015469291180652059 + r * 1.5201923152700901e-05))))));
    memcpy(&scale, &shifted, sizeof scale);
    scale = (scale + 1023u) << 52;
    memcpy(&two_n, &scale, sizeof two_n);
    const float result = (float)(q * two_n), half = 0.5f * y;
    const float sign = copysignf(y == floorf(y) && half != floorf(half) ? 1.0f : 0.0f, x) < 0.0f ? -1.0f : 1.0f;
    const float real = x < 0.0f && x >= -FLT_MAX && y != floorf(y) ? NAN : sign * result;
    return x == 1.0f || y == 0.0f ? 1.0f : x != x || y != y ? x + y : real;
}

OP_INLINE float op_sqrt_f(float x) { return sqrtf(x); }
OP_INLINE float op_tan_f(float x) { return tanf(x); }
OP_INLINE float op_asin_f(float x) { return asinf(x); }
OP_INLINE float op_acos_f(float x) { return acosf(x); }
OP_INLINE float op_sinh_f(float x) { return sinhf(x); }
OP_INLINE float op_cosh_f(float x) { return coshf(x); }
OP_INLINE float op_asinh_f(float x) { return asinhf(x); }
OP_INLINE float op_acosh_f(float x) { return acoshf(x); }
OP_INLINE float op_atanh_f(float x) { return atanhf(x); }
OP_INLINE float op_abs_f(float x) { return fabsf(x); }
OP_INLINE float op_floor_f(float x) { return floorf(x); }
OP_INLINE float op_ceil_f(float x) { return ceilf(x); }
OP_INLINE float op_round_f(float x) { return rintf(x); } /* half to even */
OP_INLINE float op_sign_f(float x) { return x != x ? x : (float)(x > 0.0f) - (float)(x < 0.0f); }
OP_INLINE float op_fmod_f(float x, float y) { return fmodf(x, y); }

/* NaN is larger and smaller than every number. */
OP_INLINE float op_max_f(float x, float y) { return ((x > y) | (x != x)) ? x : y; }
OP_INLINE float op_min_f(float x, float y) { return ((x < y) | (x != x)) ? x : y; }

/* ---- Elements: double ---- */

OP_INLINE double op_exp_d(double x) { return exp(x); }
OP_INLINE double op_expm1_d(double x) { return expm1(x); }
OP_INLINE double op_log_d(double x) { return log(x); }
OP_INLINE double op_log1p_d(double x) { return log1p(x); }
OP_INLINE double op_tanh_d(double x) { return tanh(x); }
OP_INLINE double op_erf_d(double x) { return erf(x); }
OP_INLINE double op_sqrt_d(double x) { return sqrt(x); }
OP_INLINE double op_sin_d(double x) { return sin(x); }
OP_INLINE double op_cos_d(double x) { return cos(x); }
OP_INLINE double op_tan_d(double x) { return tan(x); }
OP_INLINE double op_asin_d(double x) { return asin(x); }
OP_INLINE double op_acos_d(double x) { return acos(x); }
OP_INLINE double op_atan_d(double x) { return atan(x); }
OP_INLINE double op_sinh_d(double x) { return sinh(x); }
OP_INLINE double op_cosh_d(double x) { return cosh(x); }
OP_INLINE double op_asinh_d(double x) { return asinh(x); }
OP_INLINE double op_acosh_d(double x) { return acosh(x); }
OP_INLINE double op_atanh_d(double x) { return atanh(x); }
OP_INLINE double op_pow_d(double x, double y) { return pow(x, y); }
OP_INLINE double op_abs_d(double x) { return fabs(x); }
OP_INLINE double op_floor_d(double x) { return floor(x); }
OP_INLINE double op_ceil_d(double x) { return ceil(x); }
OP_INLINE double op_round_d(double x) { return rint(x); }
OP_INLINE double op_sign_d(double x) { return x != x ? x : (double)(x > 0.0) - (double)(x < 0.0); }
OP_INLINE double op_fmod_d(double x, double y) { return fmod(x, y); }
OP_INLINE double op_max_d(double x, double y) { return ((x > y) | (x != x)) ? x : y; }
OP_INLINE double op_min_d(double x, double y) { return ((x < y) | (x != x)) ? x : y; }

OP_INLINE double op_sigmoid_d(double x) {
    const double e = exp(-fabs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

OP_INLINE double op_softplus_d(double x) { return (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x))); }

/* ---- Elements: integers. What C leaves undefined, divisions by 0 or of the least number by -1, is 0 or wraps. ---- */

OP_INLINE int32_t op_div_i32(int32_t x, int32_t y) { return y == 0 ? 0 : (int32_t)((int64_t)x / y); }
OP_INLINE int64_t op_div_i64(int64_t x, int64_t y) {
    return y == 0 ? 0 : y == -1 ? (int64_t)(0u - (uint64_t)x) : x / y;
}

/* The remainder has the sign of the divisor (op_mod), as in Python, or of the dividend (op_fmod), as in C. */
OP_INLINE int32_t op_fmod_i32(int32_t x, int32_t y) { return y == 0 || y == -1 ? 0 : x % y; }
OP_INLINE int64_t op_fmod_i64(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }
OP_INLINE int32_t op_mod_i32(int32_t x, int32_t y) {
    const int32_t r = op_fmod_i32(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
OP_INLINE int64_t op_mod_i64(int64_t x, int64_t y) {
    const int64_t r = op_fmod_i64(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* ---- Products of matrices: alpha A B + beta D. Sizes and strides are constants where these functions are called, so
   that a compiler writes straight loops for each product. ---- */

#if defined(__GNUC__)
#define OP_UNROLL _Pragma("GCC unroll 32")
#else
#define OP_UNROLL
#endif

/* What is nested in a product is inlined, too. GCC compiles faster where that waits until the rest is folded. */
#if defined(__GNUC__) && !defined(__clang__)
#define OP_NESTED static inline __attribute__((unused))
#define OP_PRODUCT static __attribute__((flatten))
#else
#define OP_NESTED OP_INLINE
#define OP_PRODUCT static
#endif

#define OP_LEAST(x, y) ((x) < (y) ? (x) : (y))
#define OP_QUOTIENT_UP(x, y) (((x) + (y) - 1) / (y))

/* Sizes of one product, strides in elements. Columns of C are contiguous; those of D have any stride. */
typedef struct {
    op_index m, n, k, a_row, a_k, b_k, b_column, c_row, d_row, d_column;
} op_sizes;

/* How many products there are, how far apart their matrices are, and the threads that compute them. */
typedef struct {
    op_index count, a, b, d, c, threads;
} op_batch;

/* A convolution of x (N, G C, H, W) by w (G O, C, K, L) to y (N, G O, P, Q): N, G, C, O, then by axis the sizes, strides,
   dilations and the margin before. */
typedef struct {
    op_index images, groups, channels, outputs, x[2], k[2], y[2], strides[2], dilations[2], before[2];
} op_windows;

/* Pairs of vectors x and y, in blocks of 2 H lanes: the first halves of the blocks of both, or the second halves. */
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
#define OP_SHUFFLE(VI, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define OP_SHUFFLE(VI, x, y, ...) __builtin_shuffle(x, y, (VI){__VA_ARGS__})
#endif
#define OP_LOW_2(VI, H, x, y) ( \
    OP_SHUFFLE(VI, x, y, 0, 2))
#define OP_HIGH_2(VI, H, x, y) ( \
    OP_SHUFFLE(VI, x, y, 1, 3))
#define OP_LOW_4(VI, H, x, y) ( \
    (H) == 2 ? OP_SHUFFLE(VI, x, y, 0, 1, 4, 5) : \
    OP_SHUFFLE(VI, x, y, 0, 4, 2, 6))
#define OP_HIGH_4(VI, H, x, y) ( \
    (H) == 2 ? OP_SHUFFLE(VI, x, y, 2, 3, 6, 7) : \
    OP_SHUFFLE(VI, x, y, 1, 5, 3, 7))
#define OP_LOW_8(VI, H, x, y) ( \
    (H) == 4 ? OP_SHUFFLE(VI, x, y, 0, 1, 2, 3, 8, 9, 10, 11) : \
    (H) == 2 ? OP_SHUFFLE(VI, x, y, 0, 1, 8, 9, 4, 5, 12, 13) : \
    OP_SHUFFLE(VI, x, y, 0, 8, 2, 10, 4, 12, 6, 14))
#define OP_HIGH_8(VI, H, x, y) ( \
    (H) == 4 ? OP_SHUFFLE(VI, x, y, 4, 5, 6, 7, 12, 13, 14, 15) : \
    (H) == 2 ? OP_SHUFFLE(VI, x, y, 2, 3, 10, 11, 6, 7, 14, 15) : \
    OP_SHUFFLE(VI, x, y, 1, 9, 3, 11, 5, 13, 7, 15))
#define OP_LOW_16(VI, H, x, y) ( \
    (H) == 8 ? OP_SHUFFLE(VI, x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) : \
    (H) == 4 ? OP_SHUFFLE(VI, x, y, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) : \
    (H) == 2 ? OP_SHUFFLE(VI, x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) : \
    OP_SHUFFLE(VI, x, y, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30))
#define OP_HIGH_16(VI, H, x, y) ( \
    (H) == 8 ? OP_SHUFFLE(VI, x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31) : \
    (H) == 4 ? OP_SHUFFLE(VI, x, y, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31) : \
    (H) == 2 ? OP_SHUFFLE(VI, x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31) : \
    OP_SHUFFLE(VI, x, y, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))

/* What caches hold: elements of B, and rows of a panel of it, in that of the first level; elements of A in the next. */
#define OP_NEAR 8192
#define OP_BLOCK 128
#define OP_CACHED 131072

/* The first `count` lanes of a vector. */
#define OP_DEFINE_PARTS(NAME, T, V)                                                                                    \
OP_INLINE V NAME##_load_part(const T *x, const op_index count) {                                                       \
    V part = {0};                                                                                                      \
    memcpy(&part, x, (size_t)count * sizeof(T));                                                                       \
    return part;                                                                                                       \
}                                                                                                                      \
                                                                                                                       \
OP_INLINE void NAME##_store_part(T *x, const V y, const op_index count) { memcpy(x, &y, (size_t)count * sizeof(T)); }

#if defined(__AVX512F__) && defined(__AVX512VL__) && !defined(__cplusplus)
#define OP_MASKS 1
#define OP_DEFINE_MASKED_PARTS(NAME, T, V, INSTRUCTION, MASK)                                                          \
OP_INLINE V NAME##_load_part(const T *x, const op_index count) {                                                       \
    const V zero = {0};                                                                                                \
    return (V)__builtin_ia32_load##INSTRUCTION##_mask((const void *)x, zero, (MASK)((1u << count) - 1u));              \
}                                                                                                                      \
                                                                                                                       \
OP_INLINE void NAME##_store_part(T *x, const V y, const op_index count) {                                              \
    __builtin_ia32_store##INSTRUCTION##_mask((void *)x, y, (MASK)((1u << count) - 1u));                                \
}
#else
#define OP_DEFINE_MASKED_PARTS(NAME, T, V, INSTRUCTION, MASK) OP_DEFINE_PARTS(NAME, T, V)
#endif

/* Rows at a time, of m: nearly `most` as often as possible; or somewhat fewer, so that none are left. */
#define OP_SPREAD(m, most) ((int)OP_QUOTIENT_UP(m, OP_QUOTIENT_UP(m, most)))
#define OP_DIVIDE(m, most)                                                                                             \
    ((m) % (most) == 0 ? (most) :                                                                                      \
     (most) > 4 && (m) % ((most) - 1) == 0 ? (most) - 1 :                                                              \
     (most) > 4 && (m) % ((most) - 2) == 0 ? (most) - 2 :                                                              \
     (most) > 8 && (m) % 8 == 0 ? 8 : OP_SPREAD(m, most))

/* For elements T and vectors V of W of them, with integers I and VI of the same sizes. */
#define OP_DEFINE_PRODUCT(NAME, T, V, I, VI, W, LOW, HIGH)                                                             \
OP_INLINE V NAME##_load(const T *x, const op_index count) {                                                            \
    return count == W ? *(const V *)x : NAME##_load_part(x, count);                                                    \
}                                                                                                                      \
                                                                                                                       \
OP_INLINE void NAME##_store(T *x, const V y, const op_index count) {                                                   \
    if (count == W) *(V *)x = y;                                                                                       \
    else NAME##_store_part(x, y, count);                                                                               \
}                                                                                                                      \
                                                                                                                       \
OP_INLINE V NAME##_gather(const T *x, const op_index stride, const op_index count) {                                   \
    const V zero = {0};                                                                                                \
    T each[W];                                                                                                         \
    if (stride == 1) return NAME##_load(x, count);                                                                     \
    if (stride == 0) return x[0] - zero;                                                                               \
    for (int l = 0; l < count; ++l) each[l] = x[l * stride];                                                           \
    return NAME##_load(each, count);                                                                                   \
}                                                                                                                      \
                                                                                                                       \
OP_INLINE V NAME##_result(const V sum, const T *d, const op_index d_column, const op_index count, const T alpha,       \
                          const T beta) {                                                                              \
    return beta == 0 ? alpha * sum : alpha * sum + beta * NAME##_gather(d, d_column, count);                           \
}                                                                                                                      \
                                                                                                                       \
/* rows x vectors sums in registers, `split` times. The last vector of B begins at b_last, that of C at c_last. */     \
OP_NESTED void NAME##_tile(const int rows, const int vectors, const int split, const op_sizes z,                       \
                           const op_index b_last, const op_index c_last, const T *a, const T *b, const T *d, T *c,     \
                           const T alpha, const T beta) {                                                              \
    const op_index count = OP_LEAST(z.n, W);                                                                           \
    const V zero = {0};                                                                                                \
    V s[32], x[16];                                                                                                    \
    op_index p = 0;                                                                                                    \
    OP_UNROLL for (int i = 0; i < split * rows * vectors; ++i) s[i] = zero;                                            \
    for (; p + split <= z.k; p += split) {                                                                             \
        OP_UNROLL for (int u = 0; u < split; ++u) {                                                                    \
            OP_UNROLL for (int j = 0; j < vectors; ++j)                                                                \
                x[j] = NAME##_load(b + (p + u) * z.b_k + (j < vectors - 1 ? j * W : b_last), count);                   \
            OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                 \
                OP_UNROLL for (int j = 0; j < vectors; ++j)                                                            \
                    s[(u * rows + i) * vectors + j] += a[i * z.a_row + (p + u) * z.a_k] * x[j];                        \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    for (; split > 1 && p < z.k; ++p) {                                                                                \
        OP_UNROLL for (int j = 0; j < vectors; ++j)                                                                    \
            x[j] = NAME##_load(b + p * z.b_k + (j < vectors - 1 ? j * W : b_last), count);                             \
        OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                     \
            OP_UNROLL for (int j = 0; j < vectors; ++j) s[i * vectors + j] += a[i * z.a_row + p * z.a_k] * x[j];       \
        }                                                                                                              \
    }                                                                                                                  \
    OP_UNROLL for (int u = split - 1; u > 0; --u) {                                                                    \
        OP_UNROLL for (int i = 0; i < rows * vectors; ++i)                                                             \
            s[(u - 1) * rows * vectors + i] += s[u * rows * vectors + i];                                              \
    }                                                                                                                  \
    OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                         \
        OP_UNROLL for (int j = 0; j < vectors; ++j) {                                                                  \
            const T *from = d + i * z.d_row + (j < vectors - 1 ? j * W : c_last) * z.d_column;                         \
            s[i * vectors + j] = NAME##_result(s[i * vectors + j], from, z.d_column, count, alpha, beta);              \
        }                                                                                                              \
    }                                                                                                                  \
    OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                         \
        OP_UNROLL for (int j = 0; j < vectors; ++j)                                                                    \
            NAME##_store(c + i * z.c_row + (j < vectors - 1 ? j * W : c_last), s[i * vectors + j], count);             \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* `height` rows, which are all rows or many times `rows`. */                                                          \
OP_INLINE void NAME##_rows(const int rows, const int vectors, const op_index height, const op_sizes z,                 \
                           const op_index b_last, const op_index c_last, const T *a, const T *b, const T *d, T *c,     \
                           const T alpha, const T beta) {                                                              \
    const int split = rows * vectors >= 8 ? 1 : (int)OP_LEAST(8 / (rows * vectors), OP_QUOTIENT_UP(z.k, 4));           \
    op_index i = 0;                                                                                                    \
    for (; i + rows <= height; i += rows)                                                                              \
        NAME##_tile(rows, vectors, split, z, b_last, c_last, a + i * z.a_row, b, d + i * z.d_row, c + i * z.c_row,     \
                    alpha, beta);                                                                                      \
    if (z.m % rows && i < height)                                                                                      \
        NAME##_tile((int)(z.m % rows), vectors, split, z, b_last, c_last, a + i * z.a_row, b, d + i * z.d_row,         \
                    c + i * z.c_row, alpha, beta);                                                                     \
}                                                                                                                      \
                                                                                                                       \
/* One step of the transposition of W vectors: blocks of h x h change places across the diagonal. */                   \
OP_INLINE void NAME##_exchange(V *x, const int h) {                                                                    \
    OP_UNROLL for (int i = 0; i < W / 2; ++i) {                                                                        \
        const int j = i / h * 2 * h + i % h;                                                                           \
        const V low = LOW(VI, h, x[j], x[j + h]), high = HIGH(VI, h, x[j], x[j + h]);                                  \
        x[j] = low;                                                                                                    \
        x[j + h] = high;                                                                                               \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
OP_INLINE void NAME##_exchange_all(V *x) {                                                                             \
    if (W > 8) NAME##_exchange(x, 8);                                                                                  \
    if (W > 4) NAME##_exchange(x, 4);                                                                                  \
    if (W > 2) NAME##_exchange(x, 2);                                                                                  \
    if (W > 1) NAME##_exchange(x, 1);                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* One step of the sums of W vectors: lanes are halved, and so are vectors. */                                         \
OP_INLINE void NAME##_fold(V *x, const int h) {                                                                        \
    OP_UNROLL for (int j = 0; j < h; ++j) {                                                                            \
        const V low = LOW(VI, h, x[j], x[j + h]), high = HIGH(VI, h, x[j], x[j + h]);                                  \
        x[j] = low + high;                                                                                             \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* W columns of k elements of B, as rows of W. */                                                                      \
OP_NESTED void NAME##_transpose(const op_index k, const op_index count, const op_index b_column, const T *b, T *rows,  \
                                const op_index row) {                                                                  \
    for (op_index p = 0; p < k; p += W) {                                                                              \
        const op_index length = OP_LEAST(k - p, W);                                                                    \
        V x[W];                                                                                                        \
        OP_UNROLL for (int j = 0; j < W; ++j) x[j] = NAME##_load(b + OP_LEAST(j, count - 1) * b_column + p, length);   \
        NAME##_exchange_all(x);                                                                                        \
        for (int j = 0; j < length; ++j) *(V *)(rows + (p + j) * row) = x[j];                                          \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A panel of B, whatever its strides, as contiguous columns. */                                                       \
OP_NESTED void NAME##_pack(const op_index k, const int vectors, const op_index last, const op_sizes z, const T *b,     \
                           T *packed) {                                                                                \
    const op_index count = OP_LEAST(z.n, W);                                                                           \
    for (int j = 0; j < vectors; ++j) {                                                                                \
        const T *column = b + (j < vectors - 1 ? j * W : last) * z.b_column;                                           \
        if (z.b_k == 1 && z.b_column != 1) {                                                                           \
            NAME##_transpose(k, count, z.b_column, column, packed + j * W, vectors * W);                               \
        } else {                                                                                                       \
            for (op_index p = 0; p < k; ++p)                                                                           \
                *(V *)(packed + (p * vectors + j) * W) = NAME##_gather(column + p * z.b_k, z.b_column, count);         \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A panel of columns, in blocks of k. */                                                                              \
OP_INLINE void NAME##_panel(const int rows, const int vectors, const op_index height, const op_index last,             \
                            const op_sizes z, const T *a, const T *b, const T *d, T *c, T *scratch, const T alpha,     \
                            const T beta) {                                                                            \
    const int packs = z.b_column != 1 || (z.m > 4 * rows && z.b_k > 256); /* rows that are far apart */                \
    const op_index blocks = packs || z.m > rows ? OP_QUOTIENT_UP(z.k, OP_BLOCK) : 1;                                   \
    const op_index block = OP_QUOTIENT_UP(z.k, blocks), width = last + OP_LEAST(z.n, W);                               \
    op_sizes y = z;                                                                                                    \
    if (packs) y.b_k = vectors * W;                                                                                    \
    if (blocks > 1) {                                                                                                  \
        for (op_index i = 0; i < height; ++i) {                                                                        \
            for (op_index j = 0; j < width; ++j)                                                                       \
                c[i * z.c_row + j] = beta != 0 ? beta * d[i * z.d_row + j * z.d_column] : 0;                           \
        }                                                                                                              \
        y.d_row = z.c_row;                                                                                             \
        y.d_column = 1;                                                                                                \
    }                                                                                                                  \
    for (op_index start = 0; start < z.k; start += block) {                                                            \
        const T *from = b + start * z.b_k;                                                                             \
        y.k = blocks > 1 ? OP_LEAST(block, z.k - start) : z.k;                                                         \
        if (packs) NAME##_pack(y.k, vectors, last, z, from, scratch);                                                  \
        NAME##_rows(rows, vectors, height, y, packs ? (vectors - 1) * W : last, last, a + start * z.a_k,               \
                    packs ? scratch : from, blocks > 1 ? c : d, c, alpha, blocks > 1 ? (T)1 : beta);                   \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Each number of A times a row of B. The sums of some rows and a panel of columns stay in registers. */               \
OP_INLINE void NAME##_broadcast(const op_sizes z, const T *a, const T *b, const T *d, T *c, T *scratch, const T alpha, \
                                const T beta) {                                                                        \
    const int all = (int)OP_QUOTIENT_UP(z.n, W), sums = OP_REGISTERS == 32 ? 24 : 12;                                  \
    const int wide = z.m == 1 || z.k <= 2 ? OP_REGISTERS / 2 : z.m < 6 ? (int)(sums / z.m) : sums / 6;                 \
    const int panels = OP_QUOTIENT_UP(all, wide), less = all / panels, more = all % panels;                            \
    const int most = (int)OP_LEAST(sums / (less + (more > 0)), 16);                                                    \
    const int even = z.k * z.n <= OP_NEAR ? OP_DIVIDE(z.m, most) : OP_SPREAD(z.m, most);                               \
    const int rows = z.k <= 2 && all > 1 ? 1 : even;                                                                   \
    const op_index step = z.m * z.k > OP_CACHED ? OP_QUOTIENT_UP(OP_CACHED / z.k, rows) * rows : z.m;                  \
    for (op_index i = 0; i < z.m; i += step) {                                                                         \
        const op_index height = OP_LEAST(step, z.m - i);                                                               \
        op_index column = 0;                                                                                           \
        for (int panel = 0; panel < panels; ++panel) {                                                                 \
            const op_index last = panel < panels - 1 || z.n < W ? -1 : z.n - W - column;                               \
            const T *const left = a + i * z.a_row, *const right = b + column * z.b_column;                             \
            const T *const addend = d + i * z.d_row + column * z.d_column;                                             \
            T *const result = c + i * z.c_row + column;                                                                \
            if (panel < panels - more) {                                                                               \
                NAME##_panel(rows, less, height, last < 0 ? (less - 1) * W : last, z, left, right, addend, result,     \
                             scratch, alpha, beta);                                                                    \
                column += less * W;                                                                                    \
            } else {                                                                                                   \
                NAME##_panel(rows, less + 1, height, last < 0 ? less * W : last, z, left, right, addend, result,       \
                             scratch, alpha, beta);                                                                    \
                column += (less + 1) * W;                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* The transposed product, and its transposition: for up to W columns where the columns of A are contiguous. */        \
OP_INLINE void NAME##_flipped(const op_sizes z, const T *a, const T *b, const T *d, T *c, T *scratch, const T alpha,   \
                              const T beta) {                                                                          \
    const op_sizes y = {z.n, z.m, z.k, z.b_column, z.b_k, z.a_k, z.a_row, z.m, 0, 0};                                  \
    if (z.n > W) {                                                                                                     \
        NAME##_broadcast(z, a, b, d, c, scratch, alpha, beta);                                                         \
        return;                                                                                                        \
    }                                                                                                                  \
    NAME##_broadcast(y, b, a, scratch, scratch, scratch + z.n * z.m, 1, 0);                                            \
    for (op_index i = 0; i < z.m; i += W) {                                                                            \
        const op_index rows = OP_LEAST(z.m - i, W);                                                                    \
        V x[W];                                                                                                        \
        OP_UNROLL for (int j = 0; j < W; ++j) x[j] = NAME##_load(scratch + OP_LEAST(j, z.n - 1) * z.m + i, rows);      \
        NAME##_exchange_all(x);                                                                                        \
        for (int j = 0; j < rows; ++j) {                                                                               \
            const V whole = NAME##_result(x[j], d + (i + j) * z.d_row, z.d_column, z.n, alpha, beta);                  \
            NAME##_store(c + (i + j) * z.c_row, whole, z.n);                                                           \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Up to W dot products of a row and columns that are contiguous. */                                                   \
OP_NESTED void NAME##_dot_tile(const int columns, const op_sizes z, const T *a, const T *b, const T *d, T *c,          \
                               const T alpha, const T beta) {                                                          \
    const V zero = {0};                                                                                                \
    V s[W];                                                                                                            \
    OP_UNROLL for (int j = 0; j < W; ++j) s[j] = zero;                                                                 \
    for (op_index p = 0; p + W <= z.k; p += W) {                                                                       \
        const V y = *(const V *)(a + p);                                                                               \
        OP_UNROLL for (int j = 0; j < columns; ++j) s[j] += y * *(const V *)(b + j * z.b_column + p);                  \
    }                                                                                                                  \
    if (z.k % W) { /* the last vector again, without what was summed up before */                                      \
        I mask[W];                                                                                                     \
        OP_UNROLL for (int l = 0; l < W; ++l) mask[l] = l < W - z.k % W ? 0 : -1;                                      \
        const VI kept = *(const VI *)mask;                                                                             \
        const V y = (V)((VI) * (const V *)(a + z.k - W) & kept);                                                       \
        OP_UNROLL for (int j = 0; j < columns; ++j)                                                                    \
            s[j] += y * (V)((VI) * (const V *)(b + j * z.b_column + z.k - W) & kept);                                  \
    }                                                                                                                  \
    if (W > 8) NAME##_fold(s, 8);                                                                                      \
    if (W > 4) NAME##_fold(s, 4);                                                                                      \
    if (W > 2) NAME##_fold(s, 2);                                                                                      \
    if (W > 1) NAME##_fold(s, 1);                                                                                      \
    NAME##_store(c, NAME##_result(s[0], d, z.d_column, columns, alpha, beta), columns);                                \
}                                                                                                                      \
                                                                                                                       \
/* Products of matrices whose rows and columns are contiguous. */                                                      \
OP_INLINE void NAME##_dots(const op_sizes z, const T *a, const T *b, const T *d, T *c, T *scratch, const T alpha,      \
                           const T beta) {                                                                             \
    op_index j = 0;                                                                                                    \
    (void)scratch;                                                                                                     \
    for (; j + W <= z.n; j += W) {                                                                                     \
        for (op_index i = 0; i < z.m; ++i)                                                                             \
            NAME##_dot_tile(W, z, a + i * z.a_row, b + j * z.b_column, d + i * z.d_row + j * z.d_column,               \
                            c + i * z.c_row + j, alpha, beta);                                                         \
    }                                                                                                                  \
    if (z.n % W) {                                                                                                     \
        for (op_index i = 0; i < z.m; ++i)                                                                             \
            NAME##_dot_tile((int)(z.n % W), z, a + i * z.a_row, b + j * z.b_column, d + i * z.d_row + j * z.d_column,  \
                            c + i * z.c_row + j, alpha, beta);                                                         \
    }                                                                                                                  \
}

#define OP_LOW_1(VI, H, x, y) (x)
#define OP_HIGH_1(VI, H, x, y) (y)
OP_DEFINE_PARTS(op_f1, float, float)
OP_DEFINE_PRODUCT(op_f1, float, float, int32_t, int32_t, 1, OP_LOW_1, OP_HIGH_1)
OP_DEFINE_PARTS(op_d1, double, double)
OP_DEFINE_PRODUCT(op_d1, double, double, int64_t, int64_t, 1, OP_LOW_1, OP_HIGH_1)
#if OP_LANES >= 4
OP_DEFINE_PARTS(op_f2, float, op_float2)
OP_DEFINE_PRODUCT(op_f2, float, op_float2, int32_t, op_int2, 2, OP_LOW_2, OP_HIGH_2)
OP_DEFINE_MASKED_PARTS(op_f4, float, op_float4, ups128, uint8_t)
OP_DEFINE_PRODUCT(op_f4, float, op_float4, int32_t, op_int4, 4, OP_LOW_4, OP_HIGH_4)
OP_DEFINE_MASKED_PARTS(op_d2, double, op_double2, upd128, uint8_t)
OP_DEFINE_PRODUCT(op_d2, double, op_double2, int64_t, op_long2, 2, OP_LOW_2, OP_HIGH_2)
#endif
#if OP_LANES >= 8
OP_DEFINE_MASKED_PARTS(op_f8, float, op_float8, ups256, uint8_t)
OP_DEFINE_PRODUCT(op_f8, float, op_float8, int32_t, op_int8, 8, OP_LOW_8, OP_HIGH_8)
OP_DEFINE_MASKED_PARTS(op_d4, double, op_double4, upd256, uint8_t)
OP_DEFINE_PRODUCT(op_d4, double, op_double4, int64_t, op_long4, 4, OP_LOW_4, OP_HIGH_4)
#endif
#if OP_LANES >= 16
OP_DEFINE_MASKED_PARTS(op_f16, float, op_float16, ups512, uint16_t)
OP_DEFINE_PRODUCT(op_f16, float, op_float16, int32_t, op_int16, 16, OP_LOW_16, OP_HIGH_16)
OP_DEFINE_MASKED_PARTS(op_d8, double, op_double8, upd512, uint8_t)
OP_DEFINE_PRODUCT(op_d8, double, op_double8, int64_t, op_long8, 8, OP_LOW_8, OP_HIGH_8)
#endif

/* Functions for vectors of so many lanes, or the most that there are. */
#define OP_F1(FUNCTION) op_f1_##FUNCTION
#define OP_D1(FUNCTION) op_d1_##FUNCTION
#if OP_LANES >= 4
#define OP_F2(FUNCTION) op_f2_##FUNCTION
#else
#define OP_F2(FUNCTION) OP_F1(FUNCTION)
#endif
#if OP_LANES >= 4
#define OP_F4(FUNCTION) op_f4_##FUNCTION
#else
#define OP_F4(FUNCTION) OP_F2(FUNCTION)
#endif
#if OP_LANES >= 8
#define OP_F8(FUNCTION) op_f8_##FUNCTION
#else
#define OP_F8(FUNCTION) OP_F4(FUNCTION)
#endif
#if OP_LANES >= 16
#define OP_F16(FUNCTION) op_f16_##FUNCTION
#else
#define OP_F16(FUNCTION) OP_F8(FUNCTION)
#endif
#if OP_LANES >= 4
#define OP_D2(FUNCTION) op_d2_##FUNCTION
#else
#define OP_D2(FUNCTION) OP_D1(FUNCTION)
#endif
#if OP_LANES >= 8
#define OP_D4(FUNCTION) op_d4_##FUNCTION
#else
#define OP_D4(FUNCTION) OP_D2(FUNCTION)
#endif
#if OP_LANES >= 16
#define OP_D8(FUNCTION) op_d8_##FUNCTION
#else
#define OP_D8(FUNCTION) OP_D4(FUNCTION)
#endif

/* Fewer columns than lanes are a part of a vector, or two vectors that overlap. */
#if defined(OP_MASKS)
#define OP_F2_4(FUNCTION) OP_F4(FUNCTION)
#define OP_F4_8(FUNCTION) OP_F8(FUNCTION)
#define OP_F8_16(FUNCTION) OP_F16(FUNCTION)
#define OP_D2_4(FUNCTION) OP_D4(FUNCTION)
#define OP_D4_8(FUNCTION) OP_D8(FUNCTION)
#else
#define OP_F2_4(FUNCTION) OP_F2(FUNCTION)
#define OP_F4_8(FUNCTION) OP_F4(FUNCTION)
#define OP_F8_16(FUNCTION) OP_F8(FUNCTION)
#define OP_D2_4(FUNCTION) OP_D2(FUNCTION)
#define OP_D4_8(FUNCTION) OP_D4(FUNCTION)
#endif
