/* ---- Large products of matrices, whose sizes and strides are known when they run: alpha A B + beta D.

   A tile of C, of some rows and two vectors, is summed up in registers. Strips of A and panels of B are packed, so that
   their elements follow in the order in which tiles read them: a block of B stays in the second level of the cache, a
   strip of A in the first. An element of C is the sum of its products in their order, in blocks of OP_DEPTH, wherever
   the borders of tiles and of parts are: it does not depend on the number of threads. ---- */

/* The most rows of a tile. */
#define OP_TILE (OP_REGISTERS == 32 ? 12 : 6)
/* A block of B: its rows, and bytes of its columns. */
#define OP_DEPTH 512
#define OP_BREADTH 2048
/* Elements of memory for a strip of A and a block of B in panels. */
#define OP_LARGE_SCRATCH(T, W) ((size_t)OP_DEPTH * (OP_TILE + OP_BREADTH / sizeof(T)) + 2 * (W) + 64 / sizeof(T))
/* Multiplications of a part: a thread takes some twenty microseconds for them. */
#define OP_PART 1000000
#define OP_MOST(x, y) ((x) > (y) ? (x) : (y))
/* Bytes of a matrix that is read where it is, as the second level of the cache holds it. */
#define OP_HELD 262144

#if defined(OP_MASKS) && OP_LANES > 1
#define OP_LAST(NAME, V, x, count) NAME##_load_part(x, count)
#define OP_IS_PADDED(count) 0
#else
#define OP_LAST(NAME, V, x, count) (*(const V *)(x))
#define OP_IS_PADDED(count) ((count) != 0)
#endif

/* A number that a compiler cannot relate to others: it would need more registers for that than there are. */
#if defined(__GNUC__)
#define OP_HIDE(x) __asm__("" : "+r"(x))
#else
#define OP_HIDE(x) ((void)(x))
#endif

/* Bring a line into the cache that is going to be written to. */
#if defined(__GNUC__)
#define OP_FETCH(x) __builtin_prefetch(x, 1)
#else
#define OP_FETCH(x) ((void)(x))
#endif

/* A function of other files, which is called by its address; or of the file that has this text in it. */
#ifndef OP_KERNEL
#define OP_KERNEL static
#endif

/* F for the tiles of so many rows and vectors. */
#define OP_TILES_6(F, NAME, S, T) \
    F(1, 1, NAME, S, T) F(1, 2, NAME, S, T) F(2, 1, NAME, S, T) F(2, 2, NAME, S, T) \
    F(3, 1, NAME, S, T) F(3, 2, NAME, S, T) F(4, 1, NAME, S, T) F(4, 2, NAME, S, T) \
    F(5, 1, NAME, S, T) F(5, 2, NAME, S, T) F(6, 1, NAME, S, T) F(6, 2, NAME, S, T)
#if OP_REGISTERS == 32
#define OP_TILES(F, NAME, S, T) \
    OP_TILES_6(F, NAME, S, T) \
    F(7, 1, NAME, S, T) F(7, 2, NAME, S, T) F(8, 1, NAME, S, T) F(8, 2, NAME, S, T) \
    F(9, 1, NAME, S, T) F(9, 2, NAME, S, T) F(10, 1, NAME, S, T) F(10, 2, NAME, S, T) \
    F(11, 1, NAME, S, T) F(11, 2, NAME, S, T) F(12, 1, NAME, S, T) F(12, 2, NAME, S, T)
#else
#define OP_TILES(F, NAME, S, T) OP_TILES_6(F, NAME, S, T)
#endif
#define OP_TILE_NAME(ROWS, VECTORS, NAME, S, T) NAME##_sum_##ROWS##_##VECTORS,
#define OP_TILE_FUNCTION(ROWS, VECTORS, NAME, S, T) \
    static void NAME##_sum_##ROWS##_##VECTORS(const op_tile_##S *z, const T *a, const T *b, T *sums) {                 \
        NAME##_sum(ROWS, VECTORS, z, a, b, sums); \
    }

#define OP_DEFINE_LARGE(NAME, S, T, V, W)                                                                              \
/* What the tiles of a strip have in common: sizes and strides, and the lanes of the last vector. */                   \
typedef struct {                                                                                                       \
    op_index k, a_row, a_k, b_k, c_row, d_row, d_column, lanes;                                                        \
    T alpha, beta;                                                                                                     \
} op_tile_##S;                                                                                                         \
                                                                                                                       \
OP_INLINE void NAME##_sum(const int rows, const int vectors, const op_tile_##S *z, const T *a, const T *b, T *sums) {  \
    const op_index a_row = z->a_row, a_k = z->a_k, b_k = z->b_k, lanes = z->lanes;                                     \
    const V zero = {0};                                                                                                \
    const T *from[4];                                                                                                  \
    V s[2 * OP_TILE], x[2];                                                                                            \
    (void)lanes;                                                                                                       \
    OP_UNROLL for (int g = 0; 3 * g < rows; ++g) {                                                                     \
        from[g] = a + 3 * g * a_row;                                                                                   \
        OP_HIDE(from[g]);                                                                                              \
    }                                                                                                                  \
    OP_UNROLL for (int i = 0; i < rows * vectors; ++i) s[i] = zero;                                                    \
    for (op_index p = z->k; p > 0; --p) {                                                                              \
        if (vectors > 1) x[0] = *(const V *)b;                                                                         \
        x[vectors - 1] = OP_LAST(NAME, V, b + (vectors - 1) * W, lanes);                                               \
        OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                     \
            const T y = from[i / 3][i % 3 * a_row];                                                                    \
            OP_UNROLL for (int j = 0; j < vectors; ++j) s[i * vectors + j] += y * x[j];                                \
        }                                                                                                              \
        OP_UNROLL for (int g = 0; 3 * g < rows; ++g) from[g] += a_k;                                                   \
        b += b_k;                                                                                                      \
    }                                                                                                                  \
    OP_UNROLL for (int i = 0; i < rows * vectors; ++i) *(V *)(sums + i * W) = s[i];                                    \
}                                                                                                                      \
                                                                                                                       \
/* The tile of C from its sums. */                                                                                     \
OP_INLINE void NAME##_add(const op_index rows, const op_index vectors, const op_tile_##S *z, const T *sums, const T *d,\
                          const op_index d_column, T *c, const T beta) {                                               \
    for (op_index i = 0; i < rows; ++i) {                                                                              \
        for (op_index j = 0; j < vectors; ++j) {                                                                       \
            const op_index count = j < vectors - 1 ? W : z->lanes;                                                     \
            const V sum = *(const V *)(sums + (i * vectors + j) * W);                                                  \
            const V y = NAME##_result(sum, d + i * z->d_row + j * W * d_column, d_column, count, z->alpha, beta);      \
            NAME##_store(c + i * z->c_row + j * W, y, count);                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_finish(const op_index rows, const op_index vectors, const op_tile_##S *z, const T *sums, const T *d,\
                          T *c) {                                                                                      \
    if (z->beta == 0) NAME##_add(rows, vectors, z, sums, d, 1, c, 0);                                                  \
    else if (z->d_column == 1) NAME##_add(rows, vectors, z, sums, d, 1, c, z->beta);                                   \
    else NAME##_add(rows, vectors, z, sums, d, z->d_column, c, z->beta);                                               \
}                                                                                                                      \
                                                                                                                       \
OP_TILES(OP_TILE_FUNCTION, NAME, S, T)                                                                                 \
                                                                                                                       \
static void (*const NAME##_tiles[])(const op_tile_##S *, const T *, const T *, T *) = {                                \
    OP_TILES(OP_TILE_NAME, NAME, S, T)                                                                                 \
};                                                                                                                     \
                                                                                                                       \
/* Rows of A, as columns that follow on one another. The last vectors are stored first, as what they write beyond a    \
column is overwritten. */                                                                                              \
static void NAME##_pack_rows(const op_index rows, const op_index k, const op_index a_row, const op_index a_k,          \
                             const T *a, T *packed) {                                                                  \
    const op_index whole = a_row == 1 && a_k > 0 ? k - W : a_k == 1 ? k / W * W : 0;                                   \
    for (op_index g = (rows - 1) / W * W; g >= 0; g -= W) {                                                            \
        const T *const from = a + g * a_row;                                                                           \
        T *const to = packed + g;                                                                                      \
        if (a_row == 1) {                                                                                              \
            for (op_index p = 0; p < whole; ++p) *(V *)(to + p * rows) = *(const V *)(from + p * a_k);                 \
        } else {                                                                                                       \
            for (op_index p = 0; p < whole; p += W) {                                                                  \
                V x[W];                                                                                                \
                OP_UNROLL for (int i = 0; i < W; ++i)                                                                  \
                    x[i] = *(const V *)(from + OP_LEAST(i, rows - g - 1) * a_row + p);                                 \
                NAME##_exchange_all(x);                                                                                \
                OP_UNROLL for (int j = 0; j < W; ++j) *(V *)(to + (p + j) * rows) = x[j];                              \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    for (op_index p = OP_MOST(whole, 0); p < k; ++p)                                                                   \
        for (op_index i = 0; i < rows; ++i) packed[p * rows + i] = a[i * a_row + p * a_k];                             \
}                                                                                                                      \
                                                                                                                       \
/* Columns of B, as panels of two vectors, or of one at the end, whose rows follow on one another. */                  \
static void NAME##_pack_columns(const op_index n, const op_index k, const op_index b_k, const op_index b_column,       \
                                const T *b, T *packed) {                                                               \
    const op_index whole = n / W;                                                                                      \
    if (b_column == 1) {                                                                                               \
        for (op_index p = 0; p < k; ++p) {                                                                             \
            const T *const from = b + p * b_k;                                                                         \
            op_index v = 0;                                                                                            \
            for (; v + 2 <= whole; v += 2) {                                                                           \
                T *const to = packed + (v * k + p * 2) * W;                                                            \
                *(V *)to = *(const V *)(from + v * W);                                                                 \
                *(V *)(to + W) = *(const V *)(from + (v + 1) * W);                                                     \
            }                                                                                                          \
            for (; v * W < n; ++v) {                                                                                   \
                const op_index row = (v | 1) * W < n ? 2 : 1;                                                          \
                *(V *)(packed + (v / 2 * 2 * k + p * row + v % 2) * W) =                                               \
                    NAME##_load(from + v * W, OP_LEAST(n - v * W, W));                                                 \
            }                                                                                                          \
        }                                                                                                              \
        return;                                                                                                        \
    }                                                                                                                  \
    for (op_index v = 0; v * W < n; ++v) {                                                                             \
        const op_index count = OP_LEAST(n - v * W, W), row = (v | 1) * W < n ? 2 * W : W;                              \
        const T *const from = b + v * W * b_column;                                                                    \
        T *const to = packed + (v / 2 * 2 * k + v % 2) * W;                                                            \
        if (b_k == 1) {                                                                                                \
            NAME##_transpose(k, count, b_column, from, to, row);                                                       \
        } else {                                                                                                       \
            for (op_index p = 0; p < k; ++p) *(V *)(to + p * row) = NAME##_gather(from + p * b_k, b_column, count);    \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A block of k and of columns: all strips of rows. */                                                                 \
static void NAME##_block(const op_sizes z, const T *a, const T *b, const T *d, T *c, T *scratch, const T alpha,        \
                         const T beta) {                                                                               \
    const op_index strips = OP_QUOTIENT_UP(z.m, OP_TILE), less = z.m / strips, more = z.m % strips;                    \
    const op_index held = OP_HELD / (op_index)sizeof(T), span = z.a_row == 1 ? z.k * z.a_k : z.m * z.a_row;            \
    const int far_a = span > held || (z.a_row != 1 && z.a_k != 1), far_b = z.k * z.b_k > held;                         \
    const int packs_a = far_a && (z.n > 4 * W || (z.a_row != 1 && z.a_k != 1));                                        \
    const int packs_b = z.b_column != 1 || OP_IS_PADDED(z.n % W) || (far_b && strips > 2);                             \
    T *const strip = scratch + (64 - (uintptr_t)scratch % 64) / sizeof(T); /* a line of the cache, as vectors are */   \
    T *const panels = strip + OP_DEPTH * OP_TILE + W;                                                                  \
    T sums[2 * OP_TILE * W];                                                                                           \
    op_tile_##S tile = {z.k, z.a_row, z.a_k, z.b_k, z.c_row, z.d_row, z.d_column, W, alpha, beta};                     \
    if (packs_b) NAME##_pack_columns(z.n, z.k, z.b_k, z.b_column, b, panels);                                          \
    for (op_index s = 0, i = 0; s < strips; ++s) {                                                                     \
        const op_index rows = less + (s < more);                                                                       \
        const T *left = a + i * z.a_row;                                                                               \
        if (packs_a) {                                                                                                 \
            NAME##_pack_rows(rows, z.k, z.a_row, z.a_k, left, strip);                                                  \
            left = strip;                                                                                              \
            tile.a_row = 1;                                                                                            \
            tile.a_k = rows;                                                                                           \
        }                                                                                                              \
        for (op_index j = 0; j < z.n; j += 2 * W) {                                                                    \
            const int vectors = z.n - j > W ? 2 : 1;                                                                   \
            tile.lanes = OP_LEAST(z.n - j - (vectors - 1) * W, W);                                                     \
            if (packs_b) tile.b_k = vectors * W;                                                                       \
            for (op_index r = i; r < i + rows; ++r) { /* before the sums, which take longer than fetching does */      \
                OP_FETCH(c + r * z.c_row + j);                                                                         \
                OP_FETCH(c + r * z.c_row + j + W);                                                                     \
            }                                                                                                          \
            NAME##_tiles[2 * (rows - 1) + vectors - 1](&tile, left, packs_b ? panels + j * z.k : b + j, sums);         \
            NAME##_finish(rows, vectors, &tile, sums, d + i * z.d_row + j * z.d_column, c + i * z.c_row + j);          \
        }                                                                                                              \
        i += rows;                                                                                                     \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_whole(const op_sizes z, const T *a, const T *b, const T *d, T *c, T *scratch, const T alpha,        \
                         const T beta) {                                                                               \
    const op_index breadth = OP_BREADTH / (op_index)sizeof(T);                                                         \
    const op_index columns = OP_QUOTIENT_UP(z.n, OP_QUOTIENT_UP(z.n, breadth));                                        \
    const op_index step = OP_QUOTIENT_UP(columns, 2 * W) * 2 * W;                                                      \
    for (op_index j = 0; j < z.n; j += step) {                                                                         \
        op_sizes y = z;                                                                                                \
        y.n = OP_LEAST(step, z.n - j);                                                                                 \
        for (op_index p = 0; p < z.k; p += OP_DEPTH) {                                                                 \
            y.k = OP_LEAST(OP_DEPTH, z.k - p);                                                                         \
            y.d_row = p ? z.c_row : z.d_row;                                                                           \
            y.d_column = p ? 1 : z.d_column;                                                                           \
            NAME##_block(y, a + p * z.a_k, b + p * z.b_k + j * z.b_column, p ? c + j : d + j * z.d_column, c + j,      \
                         scratch, alpha, p ? (T)1 : beta);                                                             \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A product and its parts: some products of a batch, or some rows or columns of one. */                               \
typedef struct {                                                                                                       \
    op_sizes z;                                                                                                        \
    op_batch y;                                                                                                        \
    const T *a, *b, *d;                                                                                                \
    T *c;                                                                                                              \
    T alpha, beta;                                                                                                     \
    op_index group, pieces, rows, columns;                                                                             \
} op_large_##S##_work;                                                                                                 \
                                                                                                                       \
static void NAME##_part(const void *work, const op_index part, char *scratch) {                                        \
    const op_large_##S##_work *const w = (const op_large_##S##_work *)work;                                            \
    const op_index first = part / w->pieces * w->group, last = OP_LEAST(first + w->group, w->y.count);                 \
    const op_index i = part % w->pieces * w->rows, j = part % w->pieces * w->columns;                                  \
    op_sizes z = w->z;                                                                                                 \
    if (w->rows) z.m = OP_LEAST(w->rows, z.m - i);                                                                     \
    if (w->columns) z.n = OP_LEAST(w->columns, z.n - j);                                                               \
    for (op_index x = first; x < last; ++x) {                                                                          \
        NAME##_whole(z, w->a + x * w->y.a + i * z.a_row, w->b + x * w->y.b + j * z.b_column,                           \
                     w->d + x * w->y.d + i * z.d_row + j * z.d_column, w->c + x * w->y.c + i * z.c_row + j,            \
                     (T *)(void *)scratch, w->alpha, w->beta);                                                         \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
OP_KERNEL void op_large_##S(const op_sizes z, const op_batch y, const T *a, const T *b, const T *d, T *c, T *scratch,  \
                            const T alpha, const T beta) {                                                             \
    op_large_##S##_work work = {z, y, a, b, beta != 0 ? d : c, c, alpha, beta, y.count, 1, 0, 0};                      \
    const op_index most = (op_index)OP_LEAST((double)z.m * z.n * z.k * y.count / OP_PART, (double)y.threads);          \
    op_index parts = 1;                                                                                                \
    if (y.threads > 1 && most > 1) {                                                                                   \
        work.group = OP_QUOTIENT_UP(y.count, most);                                                                    \
        parts = OP_QUOTIENT_UP(y.count, work.group);                                                                   \
        if (y.count < most) {                                                                                          \
            const op_index pieces = OP_QUOTIENT_UP(most, y.count);                                                     \
            if (z.m >= z.n) work.rows = OP_QUOTIENT_UP(z.m, pieces * OP_TILE) * OP_TILE;                               \
            else work.columns = OP_QUOTIENT_UP(z.n, pieces * 2 * W) * 2 * W;                                           \
            work.pieces = work.rows ? OP_QUOTIENT_UP(z.m, work.rows) : OP_QUOTIENT_UP(z.n, work.columns);              \
            parts = y.count * work.pieces;                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    op_share(NAME##_part, &work, parts, y.threads, (char *)scratch, OP_LARGE_SCRATCH(T, W) * sizeof(T));               \
}

#if OP_LANES == 16
OP_DEFINE_LARGE(op_f16, f, float, op_float16, 16)
OP_DEFINE_LARGE(op_d8, d, double, op_double8, 8)
#elif OP_LANES == 8
OP_DEFINE_LARGE(op_f8, f, float, op_float8, 8)
OP_DEFINE_LARGE(op_d4, d, double, op_double4, 4)
#elif OP_LANES == 4
OP_DEFINE_LARGE(op_f4, f, float, op_float4, 4)
OP_DEFINE_LARGE(op_d2, d, double, op_double2, 2)
#else
OP_DEFINE_LARGE(op_f1, f, float, float, 1)
OP_DEFINE_LARGE(op_d1, d, double, double, 1)
#endif
