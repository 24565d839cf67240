/* Products of matrices of floats that are rounded to bfloat16, with sums in float. Operands are rounded while they are
   packed, as pairs of neighbors in k. Sizes are arguments, so that one function serves all products of a file.

   Processors with AVX512-BF16 add two products up in each lane of an instruction; others compute with floats. */

/* Most pairs, rows of A and columns of B of a block, of which B stays in the second level of the cache; most rows of a
   tile; columns of a panel of B. */
#define OP_PAIRS 256
#define OP_HIGH 2058
#define OP_BROAD 512
#define OP_TALL 14
#define OP_PANEL 32
/* The rows of the next tile, of so many. */
#define OP_ROWS(left) ((left) >= OP_TALL ? OP_TALL : (left) >= 8 ? 8 : (left) >= 4 ? 4 : 1)
/* Pairs from a packed row to the next, which is on other lines of the cache. */
#define OP_ROW (OP_PAIRS + 16)
/* Pairs of memory for a block of each operand. */
#define OP_PAIRS_SCRATCH(m, n) \
    (OP_LEAST(m, OP_HIGH) * OP_ROW + OP_QUOTIENT_UP(OP_LEAST(n, OP_BROAD), OP_PANEL) * OP_PANEL * OP_PAIRS)
/* Multiplications of a part: a thread takes some twenty microseconds for them. */
#define OP_PAIRS_PART 2000000

#ifndef OP_KERNEL
#define OP_KERNEL static
#endif
#if defined(__GNUC__)
#define OP_CALLED static __attribute__((noinline, unused))
#else
#define OP_CALLED static
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__cplusplus)
#include <immintrin.h>

/* Pairs of a number of `low` and one of `high` each. */
OP_INLINE __m512i op_pair(const __m512 low, const __m512 high) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* Up to 16 numbers, and zeros. */
OP_INLINE __m512 op_load_some(const float *x, const op_index stride, const op_index count) {
    float each[16] = {0};
    if (count <= 0) return _mm512_setzero_ps();
    if (stride == 1) return _mm512_maskz_loadu_ps((__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1u), x);
    for (int l = 0; l < count && l < 16; ++l) each[l] = x[l * stride];
    return _mm512_loadu_ps(each);
}

/* Up to 32 neighbors in k. */
OP_INLINE __m512i op_pairs_along(const float *x, const op_index next, const op_index count) {
    if (next == 1 && count >= 32) return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    return op_pair(op_load_some(x, 2 * next, (count + 1) / 2), op_load_some(x + next, 2 * next, count / 2));
}

OP_INLINE void op_transpose_pairs(__m512i *x) {
    __m512i y[16];
    OP_UNROLL for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    OP_UNROLL for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    OP_UNROLL for (int i = 0; i < 4; ++i) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
    OP_UNROLL for (int i = 0; i < 8; ++i) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    }
}

/* 16 lines side by side, of which `count` or more exist: `step` from pair to pair. */
OP_CALLED void op_pack_lines(const op_index count, const op_index k, const op_index line, const op_index next,
                             const float *x, uint32_t *to, const op_index step) {
    op_index p = 0;
    for (; line == 1 && count >= 16 && p + 2 <= k; p += 2)
        _mm512_storeu_si512(to + p / 2 * step,
                            op_pair(_mm512_loadu_ps(x + p * next), _mm512_loadu_ps(x + (p + 1) * next)));
    for (; line == 1 && p < k; p += 2)
        _mm512_storeu_si512(to + p / 2 * step, op_pair(op_load_some(x + p * next, 1, count), p + 1 < k
                                                       ? op_load_some(x + (p + 1) * next, 1, count)
                                                       : _mm512_setzero_ps()));
    for (; p < k; p += 32) {
        __m512i v[16];
        for (int l = 0; l < 16; ++l) v[l] = op_pairs_along(x + (l < count ? l : 0) * line + p * next, next, k - p);
        op_transpose_pairs(v);
        for (int l = 0; l < 16 && p + 2 * l < k; ++l) _mm512_storeu_si512(to + (p / 2 + l) * step, v[l]);
    }
}

/* Rows one behind the other. Of columns that are contiguous, the pairs of 16 rows are transposed. */
OP_CALLED void op_pack_rows(const op_index rows, const op_index k, const op_index row, const op_index next,
                            const float *x, uint32_t *to) {
    for (op_index i = 0; row == 1 && i < rows; i += 16) {
        for (op_index p = 0; p < k; p += 32) {
            __m512i v[16];
            for (int l = 0; l < 16; ++l) {
                const op_index q = p + 2 * l;
                v[l] = op_pair(op_load_some(x + i + OP_LEAST(q, k - 1) * next, 1, q < k ? rows - i : 0),
                               op_load_some(x + i + OP_LEAST(q + 1, k - 1) * next, 1, q + 1 < k ? rows - i : 0));
            }
            op_transpose_pairs(v);
            for (op_index l = 0; l < 16 && i + l < rows; ++l) _mm512_storeu_si512(to + (i + l) * OP_ROW + p / 2, v[l]);
        }
    }
    for (op_index i = 0; row != 1 && i < rows; ++i) {
        for (op_index p = 0; p < k; p += 32)
            _mm512_storeu_si512(to + i * OP_ROW + p / 2, op_pairs_along(x + i * row + p * next, next, k - p));
    }
}

/* rows x vectors sums in registers. */
OP_INLINE void op_sum_pairs(const int rows, const int vectors, const op_index pairs, const uint32_t *a,
                            const uint32_t *b, const op_index count, const float *d, const op_index d_row, float *c,
                            const op_index c_row, const float alpha, const float beta) {
    const op_index rest = count - 16 * (vectors - 1);
    const __mmask16 last = (__mmask16)(rest >= 16 ? 0xffffu : (1u << rest) - 1u);
    __m512 s[2 * OP_TALL];
    OP_UNROLL for (int i = 0; i < rows * vectors; ++i) s[i] = _mm512_setzero_ps();
    for (op_index p = 0; p < pairs; ++p) {
        __m512bh x[2];
        OP_UNROLL for (int j = 0; j < vectors; ++j) x[j] = (__m512bh)_mm512_loadu_si512(b + p * OP_PANEL + j * 16);
        OP_UNROLL for (int i = 0; i < rows; ++i) {
            const __m512bh y = (__m512bh)_mm512_set1_epi32((int)a[i * OP_ROW + p]);
            OP_UNROLL for (int j = 0; j < vectors; ++j)
                s[i * vectors + j] = _mm512_dpbf16_ps(s[i * vectors + j], y, x[j]);
        }
    }
    OP_UNROLL for (int i = 0; i < rows * vectors; ++i) s[i] = _mm512_mul_ps(_mm512_set1_ps(alpha), s[i]);
    if (beta != 0) {
        OP_UNROLL for (int i = 0; i < rows; ++i) {
            OP_UNROLL for (int j = 0; j < vectors; ++j) {
                const __mmask16 mask = j < vectors - 1 ? 0xffff : last;
                s[i * vectors + j] = _mm512_fmadd_ps(
                    _mm512_set1_ps(beta), _mm512_maskz_loadu_ps(mask, d + i * d_row + j * 16), s[i * vectors + j]);
            }
        }
    }
    OP_UNROLL for (int i = 0; i < rows; ++i) {
        OP_UNROLL for (int j = 0; j < vectors; ++j)
            _mm512_mask_storeu_ps(c + i * c_row + j * 16, j < vectors - 1 ? 0xffff : last, s[i * vectors + j]);
    }
}

#define OP_DEFINE_TILE(ROWS)                                                                                           \
OP_CALLED void op_tile_##ROWS(const op_index pairs, const uint32_t *a, const uint32_t *b, const op_index count,        \
                              const float *d, const op_index d_row, float *c, const op_index c_row, const float alpha, \
                              const float beta) {                                                                      \
    if (count > 16) op_sum_pairs(ROWS, 2, pairs, a, b, count, d, d_row, c, c_row, alpha, beta);                        \
    else op_sum_pairs(ROWS, 1, pairs, a, b, count, d, d_row, c, c_row, alpha, beta);                                   \
}
OP_DEFINE_TILE(14)
OP_DEFINE_TILE(8)
OP_DEFINE_TILE(4)
OP_DEFINE_TILE(1)

/* As many rows of up to OP_PANEL columns as a tile has; the columns of D are contiguous. */
OP_INLINE void op_tile(const op_index left, const op_index pairs, const uint32_t *a, const uint32_t *b,
                       const op_index count, const float *d, const op_index d_row, float *c, const op_index c_row,
                       const float alpha, const float beta) {
    switch (OP_ROWS(left)) {
    case OP_TALL: op_tile_14(pairs, a, b, count, d, d_row, c, c_row, alpha, beta); break;
    case 8: op_tile_8(pairs, a, b, count, d, d_row, c, c_row, alpha, beta); break;
    case 4: op_tile_4(pairs, a, b, count, d, d_row, c, c_row, alpha, beta); break;
    default: op_tile_1(pairs, a, b, count, d, d_row, c, c_row, alpha, beta);
    }
}

#else

OP_CALLED void op_pack_rows(const op_index rows, const op_index k, const op_index row, const op_index next,
                            const float *x, uint32_t *to) {
    for (op_index i = 0; i < rows; ++i) {
        for (op_index p = 0; p < k; p += 2) {
            const float *const at = x + i * row + p * next;
            to[i * OP_ROW + p / 2] = op_round_bits(at[0]) >> 16 | (p + 1 < k ? op_round_bits(at[next]) : 0u);
        }
    }
}

OP_CALLED void op_pack_lines(const op_index count, const op_index k, const op_index line, const op_index next,
                             const float *x, uint32_t *to, const op_index step) {
    for (op_index p = 0; p < k; p += 2) {
        for (op_index l = 0; l < 16; ++l) {
            const float *const at = x + (l < count ? l : 0) * line + p * next;
            to[p / 2 * step + l] = op_round_bits(at[0]) >> 16 | (p + 1 < k ? op_round_bits(at[next]) : 0u);
        }
    }
}

OP_CALLED void op_tile(const op_index left, const op_index pairs, const uint32_t *a, const uint32_t *b,
                       const op_index count, const float *d, const op_index d_row, float *c, const op_index c_row,
                       const float alpha, const float beta) {
    for (op_index i = 0; i < OP_ROWS(left); ++i) {
        float s[OP_PANEL] = {0};
        for (op_index p = 0; p < pairs; ++p) {
            const uint32_t both = a[i * OP_ROW + p];
            const float low = op_from_bits_f(both << 16), high = op_from_bits_f(both & 0xffff0000u);
            for (op_index j = 0; j < OP_LEAST(count, OP_PANEL); ++j) {
                const uint32_t x = b[p * OP_PANEL + j];
                s[j] += low * op_from_bits_f(x << 16) + high * op_from_bits_f(x & 0xffff0000u);
            }
        }
        for (op_index j = 0; j < OP_LEAST(count, OP_PANEL); ++j)
            c[i * c_row + j] = beta == 0 ? alpha * s[j] : alpha * s[j] + beta * d[i * d_row + j];
    }
}

#endif

static void op_whole_of_pairs(const op_sizes z, const float *a, const float *b, const float *d, float *c,
                              uint32_t *scratch, const float alpha, const float beta) {
    uint32_t *const left = scratch, *const right = left + OP_LEAST(z.m, OP_HIGH) * OP_ROW;
    const int is_copied = beta != 0 && z.d_column != 1;
    for (op_index i = 0; is_copied && i < z.m; ++i) {
        for (op_index j = 0; j < z.n; ++j) c[i * z.c_row + j] = d[i * z.d_row + j * z.d_column];
    }
    for (op_index p = 0; p < z.k; p += 2 * OP_PAIRS) {
        const op_index k = OP_LEAST(z.k - p, 2 * OP_PAIRS), d_row = p || is_copied ? z.c_row : z.d_row;
        const float *const addend = p || is_copied ? c : d, share = p ? 1 : beta;
        for (op_index r = 0; r < z.m; r += OP_HIGH) {
            const op_index m = OP_LEAST(z.m - r, OP_HIGH);
            op_pack_rows(m, k, z.a_row, z.a_k, a + r * z.a_row + p * z.a_k, left);
            for (op_index q = 0; q < z.n; q += OP_BROAD) {
                const op_index n = OP_LEAST(z.n - q, OP_BROAD);
                for (op_index j = 0; j < n; j += 16)
                    op_pack_lines(n - j, k, z.b_column, z.b_k, b + p * z.b_k + (q + j) * z.b_column,
                                  right + j / OP_PANEL * OP_PANEL * OP_PAIRS + j % OP_PANEL, OP_PANEL);
                for (op_index j = 0; j < n; j += OP_PANEL) {
                    for (op_index i = 0; i < m; i += OP_ROWS(m - i))
                        op_tile(m - i, (k + 1) / 2, left + i * OP_ROW, right + j * OP_PAIRS, n - j,
                                addend + (r + i) * d_row + q + j, d_row, c + (r + i) * z.c_row + q + j, z.c_row, alpha,
                                share);
                }
            }
        }
    }
}

/* Products and their parts: some products of a batch, or some rows or columns of one. */
typedef struct {
    op_sizes z;
    op_batch y;
    const float *a, *b, *d;
    float *c;
    float alpha, beta;
    op_index group, pieces, rows, columns;
} op_pairs_work;

static void op_part_of_pairs(const void *work, const op_index part, char *scratch) {
    const op_pairs_work *const w = (const op_pairs_work *)work;
    const op_index first = part / w->pieces * w->group, last = OP_LEAST(first + w->group, w->y.count);
    const op_index i = part % w->pieces * w->rows, j = part % w->pieces * w->columns;
    op_sizes z = w->z;
    if (w->rows) z.m = OP_LEAST(w->rows, z.m - i);
    if (w->columns) z.n = OP_LEAST(w->columns, z.n - j);
    for (op_index x = first; x < last; ++x) {
        op_whole_of_pairs(z, w->a + x * w->y.a + i * z.a_row, w->b + x * w->y.b + j * z.b_column,
                          w->d + x * w->y.d + i * z.d_row + j * z.d_column, w->c + x * w->y.c + i * z.c_row + j,
                          (uint32_t *)(void *)scratch, w->alpha, w->beta);
    }
}

OP_KERNEL void op_bfloat16(const op_sizes z, const op_batch y, const float *a, const float *b, const float *d, float *c,
                           uint32_t *scratch, const float alpha, const float beta) {
    op_pairs_work work = {z, y, a, b, beta != 0 ? d : c, c, alpha, beta, y.count, 1, 0, 0};
    const double size = (double)z.m * (double)z.n * (double)z.k * (double)y.count;
    const op_index most = (op_index)OP_LEAST(size / OP_PAIRS_PART, 2.0 * (double)y.threads);
    op_index parts = 1;
    if (y.threads > 1 && most > 1) {
        work.group = OP_QUOTIENT_UP(y.count, most);
        parts = OP_QUOTIENT_UP(y.count, work.group);
        if (y.count < most) {
            const op_index pieces = OP_QUOTIENT_UP(most, y.count);
            if (z.m >= z.n) work.rows = OP_QUOTIENT_UP(z.m, pieces * OP_TALL) * OP_TALL;
            else work.columns = OP_QUOTIENT_UP(z.n, pieces * OP_PANEL) * OP_PANEL;
            work.pieces = work.rows ? OP_QUOTIENT_UP(z.m, work.rows) : OP_QUOTIENT_UP(z.n, work.columns);
            parts = y.count * work.pieces;
        }
    }
    op_share(op_part_of_pairs, &work, parts, y.threads, (char *)scratch,
             (size_t)OP_PAIRS_SCRATCH(z.m, z.n) * sizeof(uint32_t));
}
