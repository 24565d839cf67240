/* ---- Convolutions and their gradients, whose sizes are known when they run. This text stands after large_products.c.

   Images are laid out with their channels side by side, one pixel after the other. A convolution adds up, tap by tap of
   the kernel, the products of the pixels that the tap sees: pixels of the margin take no time, and no columns are
   written but where there are few channels. Kernels of 3 x 3 that move by one pixel take Winograd's minimal filtering.
   The order of the sums of an element depends on the sizes alone, not on the number of threads. ---- */

/* The most rows of a tile, whose columns are two vectors. */
#define OP_STRIP (OP_REGISTERS == 32 ? 12 : 4)
/* Places of a block of a convolution, and of its gradient by kernels; rows times taps of a block of that. */
#define OP_PIXELS 128
#define OP_PLACES 256
#define OP_DEEP 576
/* Fewer channels are taken together with the taps, as columns, of which so many are written at a time. */
#define OP_FEW 12
#define OP_GATHERED 4096
/* Winograd's tiles of a block, the fewest that are worth it, and elements of transformed kernels. */
#define OP_TILES_SEEN 48
#define OP_FEWEST_TILES 96
#define OP_RAISED 131072

#define OP_ROUND_UP(x, y) (OP_QUOTIENT_UP(x, y) * (y))

/* From one pixel to the next: channels in whole vectors, and more, so that pixels do not fall on the same lines. */
#define OP_PITCH(channels) (OP_ROUND_UP(channels, 16) + 16)

/* The pixel of x under a tap at a place of y, or -1. */
OP_INLINE op_index op_see(const op_windows *z, const op_index i, const op_index j, const op_index tap) {
    const op_index h = i * z->strides[0] + tap / z->k[1] * z->dilations[0] - z->before[0];
    const op_index w = j * z->strides[1] + tap % z->k[1] * z->dilations[1] - z->before[1];
    return h < 0 || w < 0 || h >= z->x[0] || w >= z->x[1] ? -1 : h * z->x[1] + w;
}

/* The place of y at which a tap sees a pixel of x, or -1. */
OP_INLINE op_index op_find(const op_windows *z, const op_index i, const op_index j, const op_index tap) {
    const op_index h = i - tap / z->k[1] * z->dilations[0] + z->before[0];
    const op_index w = j - tap % z->k[1] * z->dilations[1] + z->before[1];
    if (h < 0 || w < 0 || h % z->strides[0] || w % z->strides[1]) return -1;
    return h / z->strides[0] >= z->y[0] || w / z->strides[1] >= z->y[1] ? -1 :
           h / z->strides[0] * z->y[1] + w / z->strides[1];
}

/* Pairs of rows for a tap: for `count` places from `start` on of y, or of x where it is the result, all images in a
   row, the places (from 0 on) and the rows that are read. */
static op_index op_pair(const op_windows *z, const int is_transposed, const op_index tap, const op_index start,
                        const op_index count, op_index *from, op_index *to) {
    const op_index *const size = is_transposed ? z->x : z->y, *const other = is_transposed ? z->y : z->x;
    op_index n = 0, i = start / size[1] % size[0], j = start % size[1], image = start / size[1] / size[0];
    for (op_index q = 0; q < count; ++q) {
        const op_index at = is_transposed ? op_find(z, i, j, tap) : op_see(z, i, j, tap);
        if (at >= 0) {
            from[n] = image * other[0] * other[1] + at;
            to[n++] = q;
        }
        if (++j == size[1]) {
            j = 0;
            if (++i == size[0]) i = 0, ++image;
        }
    }
    return n;
}

/* Whether Winograd's tiles take less time: they transform kernels, and want many tiles to use them. */
OP_INLINE int op_suits_winograd(const op_windows *z, const int is_transposed) {
    const op_index *const size = is_transposed ? z->x : z->y;
    const op_index tiles = z->images * OP_QUOTIENT_UP(size[0], 2) * OP_QUOTIENT_UP(size[1], 2);
    const int moves = z->strides[0] != 1 || z->strides[1] != 1 || z->dilations[0] != 1 || z->dilations[1] != 1;
    return z->k[0] == 3 && z->k[1] == 3 && !moves && z->channels >= 32 && z->outputs >= 32 && size[0] >= 4 &&
           size[1] >= 4 && size[1] <= 2 * OP_TILES_SEEN && tiles >= OP_FEWEST_TILES;
}

#define OP_DEFINE_CONVOLUTION(NAME, S, T, V, W)                                                                        \
/* Pixels side by side: (channels, places) becomes (places, pitch), filled up with zeros. */                           \
static void NAME##_lay_out(const op_index channels, const op_index places, const op_index pitch, const T *x, T *to) {  \
    for (op_index c = 0; c < pitch; c += W) {                                                                          \
        const op_index some = OP_LEAST(W, channels - c);                                                               \
        for (op_index p = 0; p < places; p += W) {                                                                     \
            const op_index length = OP_LEAST(W, places - p);                                                           \
            const V zero = {0};                                                                                        \
            V v[W];                                                                                                    \
            if (some == W && length == W) {                                                                            \
                OP_UNROLL for (int j = 0; j < W; ++j) v[j] = *(const V *)(x + (c + j) * places + p);                   \
            } else {                                                                                                   \
                for (int j = 0; j < W; ++j) v[j] = j < some ? NAME##_load(x + (c + j) * places + p, length) : zero;    \
            }                                                                                                          \
            NAME##_exchange_all(v);                                                                                    \
            for (op_index j = 0; j < length; ++j) *(V *)(to + (p + j) * pitch + c) = v[j];                             \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* The kernels of some outputs as (taps, channels, columns), columns being vectors of outputs. */                      \
static void NAME##_pack_outputs(const op_index depth, const op_index taps, const op_index outputs,                     \
                                const int vectors, const T *w, T *packed) {                                            \
    const op_index channels = depth / taps;                                                                            \
    for (int j = 0; j < vectors; ++j) {                                                                                \
        for (op_index p = 0; p < depth; p += W) {                                                                      \
            const op_index length = OP_LEAST(W, depth - p);                                                            \
            op_index c = p / taps, tap = p % taps;                                                                     \
            V v[W];                                                                                                    \
            OP_UNROLL for (int i = 0; i < W; ++i)                                                                      \
                v[i] = NAME##_load(w + OP_LEAST(j * W + i, outputs - 1) * depth + p, length);                          \
            NAME##_exchange_all(v);                                                                                    \
            for (op_index i = 0; i < length; ++i) {                                                                    \
                *(V *)(packed + ((tap * channels + c) * vectors + j) * W) = v[i];                                      \
                if (++tap == taps) tap = 0, ++c;                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* The kernels of some channels as (taps, outputs, columns), columns being vectors of channels. */                     \
static void NAME##_pack_channels(const op_index depth, const op_index taps, const op_index outputs,                    \
                                 const op_index channels, const int vectors, const T *w, T *packed) {                  \
    for (op_index o = 0; o < outputs; ++o) {                                                                           \
        for (int j = 0; j < vectors; ++j) {                                                                            \
            for (op_index p = 0; p < taps; p += W) {                                                                   \
                const op_index length = OP_LEAST(W, taps - p);                                                         \
                V v[W];                                                                                                \
                OP_UNROLL for (int i = 0; i < W; ++i)                                                                  \
                    v[i] = NAME##_load(w + o * depth + OP_LEAST(j * W + i, channels - 1) * taps + p, length);          \
                NAME##_exchange_all(v);                                                                                \
                for (op_index i = 0; i < length; ++i)                                                                  \
                    *(V *)(packed + (((p + i) * outputs + o) * vectors + j) * W) = v[i];                               \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Rows of sums += rows of x, of length k, times a panel w of k rows. */                                               \
OP_INLINE void NAME##_add_rows(const int rows, const int vectors, const op_index k, const op_index pitch,              \
                               const op_index *from, const op_index *to, const T *x, const T *w, T *sums) {            \
    V s[32], b[2];                                                                                                     \
    const T *row[12];                                                                                                  \
    op_index p = 0;                                                                                                    \
    OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                         \
        row[i] = x + from[i] * pitch;                                                                                  \
        OP_UNROLL for (int j = 0; j < vectors; ++j)                                                                    \
            s[i * vectors + j] = *(const V *)(sums + (to[i] * vectors + j) * W);                                       \
    }                                                                                                                  \
    for (; p + 4 <= k; p += 4) {                                                                                       \
        OP_UNROLL for (int u = 0; u < 4; ++u) {                                                                        \
            OP_UNROLL for (int j = 0; j < vectors; ++j) b[j] = *(const V *)(w + ((p + u) * vectors + j) * W);          \
            OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                 \
                OP_UNROLL for (int j = 0; j < vectors; ++j) s[i * vectors + j] += row[i][p + u] * b[j];                \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    for (; p < k; ++p) {                                                                                               \
        OP_UNROLL for (int j = 0; j < vectors; ++j) b[j] = *(const V *)(w + (p * vectors + j) * W);                    \
        OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                     \
            OP_UNROLL for (int j = 0; j < vectors; ++j) s[i * vectors + j] += row[i][p] * b[j];                        \
        }                                                                                                              \
    }                                                                                                                  \
    OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                         \
        OP_UNROLL for (int j = 0; j < vectors; ++j)                                                                    \
            *(V *)(sums + (to[i] * vectors + j) * W) = s[i * vectors + j];                                             \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_add_all_rows(const int vectors, const op_index n, const op_index k, const op_index pitch,           \
                                const op_index *from, const op_index *to, const T *x, const T *w, T *sums) {           \
    op_index i = 0;                                                                                                    \
    if (vectors == 2) {                                                                                                \
        for (; i + OP_STRIP <= n; i += OP_STRIP) NAME##_add_rows(OP_STRIP, 2, k, pitch, from + i, to + i, x, w, sums); \
        for (; i + 4 <= n; i += 4) NAME##_add_rows(4, 2, k, pitch, from + i, to + i, x, w, sums);                      \
        for (; i < n; ++i) NAME##_add_rows(1, 2, k, pitch, from + i, to + i, x, w, sums);                              \
    } else {                                                                                                           \
        for (; i + OP_STRIP <= n; i += OP_STRIP) NAME##_add_rows(OP_STRIP, 1, k, pitch, from + i, to + i, x, w, sums); \
        for (; i + 4 <= n; i += 4) NAME##_add_rows(4, 1, k, pitch, from + i, to + i, x, w, sums);                      \
        for (; i < n; ++i) NAME##_add_rows(1, 1, k, pitch, from + i, to + i, x, w, sums);                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Elements (rows, columns) of sums += the products of pairs of pixels of x and y. */                                  \
OP_INLINE void NAME##_add_outer(const int rows, const int vectors, const op_index n, const op_index x_pitch,           \
                                const op_index y_pitch, const op_index *from, const op_index *to, const T *x,          \
                                const T *y, T *sums) {                                                                 \
    V s[32], b[2];                                                                                                     \
    OP_UNROLL for (int i = 0; i < rows * vectors; ++i) s[i] = *(const V *)(sums + i * W);                              \
    for (op_index p = 0; p < n; ++p) {                                                                                 \
        const T *const a = x + from[p] * x_pitch, *const row = y + to[p] * y_pitch;                                    \
        OP_UNROLL for (int j = 0; j < vectors; ++j) b[j] = *(const V *)(row + j * W);                                  \
        OP_UNROLL for (int i = 0; i < rows; ++i) {                                                                     \
            OP_UNROLL for (int j = 0; j < vectors; ++j) s[i * vectors + j] += a[i] * b[j];                             \
        }                                                                                                              \
    }                                                                                                                  \
    OP_UNROLL for (int i = 0; i < rows * vectors; ++i) *(V *)(sums + i * W) = s[i];                                    \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_add_all_outer(const int vectors, const op_index rows, const op_index n, const op_index x_pitch,     \
                                 const op_index y_pitch, const op_index *from, const op_index *to, const T *x,         \
                                 const T *y, T *sums) {                                                                \
    op_index i = 0;                                                                                                    \
    if (vectors == 2) {                                                                                                \
        for (; i + OP_STRIP <= rows; i += OP_STRIP)                                                                    \
            NAME##_add_outer(OP_STRIP, 2, n, x_pitch, y_pitch, from, to, x + i, y, sums + i * 2 * W);                  \
        for (; i < rows; i += 4) NAME##_add_outer(4, 2, n, x_pitch, y_pitch, from, to, x + i, y, sums + i * 2 * W);    \
    } else {                                                                                                           \
        for (; i + OP_STRIP <= rows; i += OP_STRIP)                                                                    \
            NAME##_add_outer(OP_STRIP, 1, n, x_pitch, y_pitch, from, to, x + i, y, sums + i * W);                      \
        for (; i < rows; i += 4) NAME##_add_outer(4, 1, n, x_pitch, y_pitch, from, to, x + i, y, sums + i * W);        \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Columns of some places: (places, pitch), with all channels of a tap, row by row of the kernel. Vectors are written  \
   from left to right, so that each may reach into the next. */                                                        \
static void NAME##_gather_columns(const op_windows *z, const op_index start, const op_index count,                     \
                                  const op_index pitch, const T *x, T *columns) {                                      \
    const op_index step = z->dilations[1];                                                                             \
    const V zero = {0};                                                                                                \
    for (op_index q = 0; q < count; ++q) {                                                                             \
        const op_index place = start + q, image = place / (z->y[0] * z->y[1]);                                         \
        const op_index i = place / z->y[1] % z->y[0] * z->strides[0] - z->before[0];                                   \
        const op_index j = place % z->y[1] * z->strides[1] - z->before[1];                                             \
        const op_index low = j < 0 ? OP_LEAST(OP_QUOTIENT_UP(-j, step), z->k[1]) : 0;                                  \
        const op_index high = j >= z->x[1] ? 0 : OP_LEAST(z->k[1], OP_QUOTIENT_UP(z->x[1] - j, step));                 \
        T *to = columns + q * pitch;                                                                                   \
        for (op_index c = 0; c < z->channels; ++c) {                                                                   \
            for (op_index k = 0; k < z->k[0]; ++k, to += z->k[1]) {                                                    \
                const op_index h = i + k * z->dilations[0];                                                            \
                const T *const from = x + ((image * z->groups * z->channels + c) * z->x[0] + h) * z->x[1] + j;         \
                for (op_index l = 0; l < z->k[1]; l += W) *(V *)(to + l) = zero;                                       \
                if (h < 0 || h >= z->x[0] || low >= high) continue;                                                    \
                if (step == 1 && high - low <= W)                                                                      \
                    NAME##_store(to + low, NAME##_load(from + low, high - low), high - low);                           \
                else                                                                                                   \
                    for (op_index l = low; l < high; ++l) to[l] = from[l * step];                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (const T *const end = columns + q * pitch + pitch - W; to < end; to += W) *(V *)to = zero;                 \
        *(V *)(columns + q * pitch + pitch - W) = zero;                                                                \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Sums (count, columns) of places from `start` on, all images in a row, into planes of `places`. */                   \
static void NAME##_put_planes(const int vectors, const op_index start, const op_index count, const op_index places,    \
                              const op_index planes, const op_index outputs, const T *bias, const T *sums, T *y) {     \
    for (op_index p = 0; p < count;) {                                                                                 \
        const op_index image = (start + p) / places, at = (start + p) % places;                                        \
        const op_index length = OP_LEAST(OP_LEAST(W, count - p), places - at);                                         \
        for (int j = 0; j < vectors; ++j) {                                                                            \
            const op_index some = OP_LEAST(W, outputs - j * W);                                                        \
            V v[W];                                                                                                    \
            OP_UNROLL for (int i = 0; i < W; ++i)                                                                      \
                v[i] = *(const V *)(sums + ((p + OP_LEAST(i, length - 1)) * vectors + j) * W);                         \
            NAME##_exchange_all(v);                                                                                    \
            for (op_index i = 0; i < some; ++i) {                                                                      \
                if (bias) v[i] += bias[j * W + i];                                                                     \
                NAME##_store(y + (image * planes + j * W + i) * places + at, v[i], length);                            \
            }                                                                                                          \
        }                                                                                                              \
        p += length;                                                                                                   \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Winograd's F(2 x 2, 3 x 3): tiles of 2 x 2 places, each from 4 x 4 pixels, by 16 products in place of 36. */        \
typedef struct {                                                                                                       \
    const op_windows *z;                                                                                               \
    const T *w, *bias;                                                                                                 \
    T *y, *pixels;                                                                                                     \
    op_index in, out, in_size[2], size[2], margin[2], tiles[2], pitch, panels, pieces, length;                         \
    int is_transposed;                                                                                                 \
} NAME##_winograd;                                                                                                     \
                                                                                                                       \
/* B' d B of the pixels that some tiles see, as (16, tiles, pitch). */                                                 \
static void NAME##_see_tiles(const op_index *in_size, const op_index *margin, const op_index *tiles,                   \
                             const op_index first, const op_index count, const op_index pitch, const T *pixels,        \
                             T *seen) {                                                                                \
    const V zero = {0};                                                                                                \
    for (op_index n = 0; n < count; ++n) {                                                                             \
        const op_index image = (first + n) / (tiles[0] * tiles[1]);                                                    \
        const op_index i = (first + n) / tiles[1] % tiles[0] * 2 - margin[0];                                          \
        const op_index j = (first + n) % tiles[1] * 2 - margin[1];                                                     \
        const T *from[16];                                                                                             \
        for (int q = 0; q < 16; ++q) {                                                                                 \
            const op_index h = i + q / 4, w = j + q % 4;                                                               \
            from[q] = h < 0 || w < 0 || h >= in_size[0] || w >= in_size[1] ? (const T *)0 :                            \
                      pixels + ((image * in_size[0] + h) * in_size[1] + w) * pitch;                                    \
        }                                                                                                              \
        for (op_index c = 0; c < pitch - 16; c += W) {                                                                 \
            V d[16], r[16];                                                                                            \
            OP_UNROLL for (int q = 0; q < 16; ++q) d[q] = from[q] ? *(const V *)(from[q] + c) : zero;                  \
            OP_UNROLL for (int q = 0; q < 4; ++q) {                                                                    \
                r[q] = d[q] - d[8 + q];                                                                                \
                r[4 + q] = d[4 + q] + d[8 + q];                                                                        \
                r[8 + q] = d[8 + q] - d[4 + q];                                                                        \
                r[12 + q] = d[4 + q] - d[12 + q];                                                                      \
            }                                                                                                          \
            OP_UNROLL for (int q = 0; q < 16; q += 4) {                                                                \
                T *const to = seen + (q * count + n) * pitch + c;                                                      \
                *(V *)to = r[q] - r[q + 2];                                                                            \
                *(V *)(to + count * pitch) = r[q + 1] + r[q + 2];                                                      \
                *(V *)(to + 2 * count * pitch) = r[q + 2] - r[q + 1];                                                  \
                *(V *)(to + 3 * count * pitch) = r[q + 1] - r[q + 3];                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* G g G' of kernels (9, count) as (16, count), in vectors. */                                                         \
static void NAME##_raise_kernels(const op_index count, const int is_flipped, const T *kernels, T *raised) {            \
    for (op_index p = 0; p < count; p += W) {                                                                          \
        V g[9], r[12];                                                                                                 \
        OP_UNROLL for (int q = 0; q < 9; ++q) g[q] = *(const V *)(kernels + (is_flipped ? 8 - q : q) * count + p);     \
        OP_UNROLL for (int q = 0; q < 3; ++q) {                                                                        \
            const V ends = (T)0.5 * (g[q] + g[6 + q]), middle = (T)0.5 * g[3 + q];                                     \
            r[q] = g[q];                                                                                               \
            r[3 + q] = ends + middle;                                                                                  \
            r[6 + q] = ends - middle;                                                                                  \
            r[9 + q] = g[6 + q];                                                                                       \
        }                                                                                                              \
        OP_UNROLL for (int q = 0; q < 4; ++q) {                                                                        \
            const V ends = (T)0.5 * (r[3 * q] + r[3 * q + 2]), middle = (T)0.5 * r[3 * q + 1];                         \
            *(V *)(raised + (4 * q + 0) * count + p) = r[3 * q];                                                       \
            *(V *)(raised + (4 * q + 1) * count + p) = ends + middle;                                                  \
            *(V *)(raised + (4 * q + 2) * count + p) = ends - middle;                                                  \
            *(V *)(raised + (4 * q + 3) * count + p) = r[3 * q + 2];                                                   \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* The transpose of the above: G' u G. */                                                                              \
static void NAME##_lower_kernels(const op_index count, const T *raised, T *kernels) {                                  \
    for (op_index p = 0; p < count; p += W) {                                                                          \
        V u[16], r[12];                                                                                                \
        OP_UNROLL for (int q = 0; q < 16; ++q) u[q] = *(const V *)(raised + q * count + p);                            \
        OP_UNROLL for (int q = 0; q < 4; ++q) {                                                                        \
            const V sum = (T)0.5 * (u[4 + q] + u[8 + q]), difference = (T)0.5 * (u[4 + q] - u[8 + q]);                 \
            r[q] = u[q] + sum;                                                                                         \
            r[4 + q] = difference;                                                                                     \
            r[8 + q] = sum + u[12 + q];                                                                                \
        }                                                                                                              \
        OP_UNROLL for (int q = 0; q < 3; ++q) {                                                                        \
            const V sum = (T)0.5 * (r[4 * q + 1] + r[4 * q + 2]), difference = (T)0.5 * (r[4 * q + 1] - r[4 * q + 2]); \
            *(V *)(kernels + (3 * q + 0) * count + p) = r[4 * q] + sum;                                                \
            *(V *)(kernels + (3 * q + 1) * count + p) = difference;                                                    \
            *(V *)(kernels + (3 * q + 2) * count + p) = sum + r[4 * q + 3];                                            \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A' m A of some rows of tiles, as places side by side. */                                                            \
static op_index NAME##_put_tiles(const op_index *size, const op_index *tiles, const op_index first,                    \
                                 const op_index count, const int vectors, const T *products, T *sums) {                \
    const op_index step = count * vectors * W;                                                                         \
    op_index row = 0;                                                                                                  \
    for (op_index n = 0; n < count; n += tiles[1]) {                                                                   \
        const op_index i = (first + n) / tiles[1] % tiles[0] * 2, rows = OP_LEAST(2, size[0] - i);                     \
        for (op_index t = 0; t < tiles[1]; ++t) {                                                                      \
            for (int j = 0; j < vectors; ++j) {                                                                        \
                const T *const from = products + ((n + t) * vectors + j) * W;                                          \
                T *const to = sums + ((row * size[1] + 2 * t) * vectors + j) * W;                                      \
                V m[16], r[8];                                                                                         \
                OP_UNROLL for (int q = 0; q < 16; ++q) m[q] = *(const V *)(from + q * step);                           \
                OP_UNROLL for (int q = 0; q < 4; ++q) {                                                                \
                    r[q] = m[q] + m[4 + q] + m[8 + q];                                                                 \
                    r[4 + q] = m[4 + q] - m[8 + q] - m[12 + q];                                                        \
                }                                                                                                      \
                for (int q = 0; q < rows; ++q) {                                                                       \
                    T *const at = to + q * size[1] * vectors * W;                                                      \
                    *(V *)at = r[4 * q] + r[4 * q + 1] + r[4 * q + 2];                                                 \
                    if (2 * t + 1 < size[1]) *(V *)(at + vectors * W) = r[4 * q + 1] - r[4 * q + 2] - r[4 * q + 3];    \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        row += rows;                                                                                                   \
    }                                                                                                                  \
    return row * size[1];                                                                                              \
}                                                                                                                      \
                                                                                                                       \
/* A y A' of the places of some tiles, as (16, tiles, pitch). */                                                       \
static void NAME##_spread_tiles(const op_index *size, const op_index *tiles, const op_index first,                     \
                                const op_index count, const op_index pitch, const T *places, T *spread) {              \
    const V zero = {0};                                                                                                \
    for (op_index n = 0; n < count; ++n) {                                                                             \
        const op_index image = (first + n) / (tiles[0] * tiles[1]);                                                    \
        const op_index i = (first + n) / tiles[1] % tiles[0] * 2, j = (first + n) % tiles[1] * 2;                      \
        const T *const from = places + ((image * size[0] + i) * size[1] + j) * pitch;                                  \
        const int is_low = i + 1 < size[0], is_wide = j + 1 < size[1];                                                 \
        for (op_index c = 0; c < pitch - 16; c += W) {                                                                 \
            const V a = *(const V *)(from + c), b = is_wide ? *(const V *)(from + pitch + c) : zero;                   \
            const V e = is_low ? *(const V *)(from + size[1] * pitch + c) : zero;                                      \
            const V f = is_low && is_wide ? *(const V *)(from + (size[1] + 1) * pitch + c) : zero;                     \
            const V left[4] = {a, a + e, a - e, -e}, right[4] = {b, b + f, b - f, -f};                                 \
            OP_UNROLL for (int q = 0; q < 4; ++q) {                                                                    \
                T *const to = spread + (4 * q * count + n) * pitch + c;                                                \
                *(V *)to = left[q];                                                                                    \
                *(V *)(to + count * pitch) = left[q] + right[q];                                                       \
                *(V *)(to + 2 * count * pitch) = left[q] - right[q];                                                   \
                *(V *)(to + 3 * count * pitch) = -right[q];                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_winograd_part(const void *work, const op_index part, char *scratch) {                               \
    const NAME##_winograd *const o = (const NAME##_winograd *)work;                                                    \
    const op_windows *const z = o->z;                                                                                  \
    const op_index all = z->images * o->tiles[0] * o->tiles[1], places = o->size[0] * o->size[1];                      \
    const op_index first = part % o->pieces * o->length, last = OP_LEAST(first + o->length, all);                      \
    const op_index begin = part / o->pieces * o->panels * 2 * W, end = OP_LEAST(begin + o->panels * 2 * W, o->out);    \
    const op_index step = OP_TILES_SEEN / o->tiles[1] * o->tiles[1], width = o->in * 2 * W;                            \
    T *const raised = (T *)(void *)scratch, *const panel = raised + o->panels * 16 * width;                            \
    T *const seen = panel + 9 * width, *const products = seen + 16 * step * o->pitch;                                  \
    T *const sums = products + 16 * step * 2 * W;                                                                      \
    op_index each[OP_TILES_SEEN];                                                                                      \
    for (op_index n = 0; n < step; ++n) each[n] = n;                                                                   \
    for (op_index column = begin; column < end; column += 2 * W) {                                                     \
        const op_index some = OP_LEAST(o->out - column, 2 * W);                                                        \
        const int vectors = some > W ? 2 : 1;                                                                          \
        if (o->is_transposed) NAME##_pack_channels(o->out * 9, 9, o->in, some, vectors, o->w + column * 9, panel);     \
        else NAME##_pack_outputs(o->in * 9, 9, some, vectors, o->w + column * o->in * 9, panel);                       \
        NAME##_raise_kernels(o->in * vectors * W, o->is_transposed, panel,                                             \
                             raised + (column - begin) / (2 * W) * 16 * width);                                        \
    }                                                                                                                  \
    for (op_index block = first; block < last; block += step) {                                                        \
        const op_index count = OP_LEAST(step, last - block), row = block / o->tiles[1];                                \
        const op_index start = row / o->tiles[0] * places + row % o->tiles[0] * 2 * o->size[1];                        \
        NAME##_see_tiles(o->in_size, o->margin, o->tiles, block, count, o->pitch, o->pixels, seen);                    \
        for (op_index column = begin; column < end; column += 2 * W) {                                                 \
            const op_index some = OP_LEAST(o->out - column, 2 * W);                                                    \
            const int vectors = some > W ? 2 : 1;                                                                      \
            const T *const kernels = raised + (column - begin) / (2 * W) * 16 * width;                                 \
            memset(products, 0, (size_t)(16 * count * vectors * W) * sizeof(T));                                       \
            for (op_index q = 0; q < 16; ++q)                                                                          \
                NAME##_add_all_rows(vectors, count, o->in, o->pitch, each, each, seen + q * count * o->pitch,          \
                                    kernels + q * o->in * vectors * W, products + q * count * vectors * W);            \
            const op_index n = NAME##_put_tiles(o->size, o->tiles, block, count, vectors, products, sums);             \
            NAME##_put_planes(vectors, start, n, places, z->groups * o->out, some,                                     \
                              o->bias ? o->bias + column : (const T *)0, sums, o->y + column * places);                \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A convolution of x by w plus a bias, into y; or, transposed, of y by w into x. */                                   \
typedef struct {                                                                                                       \
    const op_windows *z;                                                                                               \
    const T *x, *w, *bias;                                                                                             \
    T *y, *pixels;                                                                                                     \
    op_index in, out, in_places, places, k, pitch, pieces, length;                                                     \
    int is_transposed, is_columns;                                                                                     \
} NAME##_convolution;                                                                                                  \
                                                                                                                       \
static void NAME##_lay_out_part(const void *work, const op_index image, char *scratch) {                               \
    const NAME##_convolution *const o = (const NAME##_convolution *)work;                                              \
    NAME##_lay_out(o->in, o->in_places, o->pitch, o->x + image * o->z->groups * o->in * o->in_places,                  \
                   o->pixels + image * o->in_places * o->pitch);                                                       \
    (void)scratch;                                                                                                     \
}                                                                                                                      \
                                                                                                                       \
/* Some columns, or all of them for columns of pixels that are gathered, at some places. */                            \
static void NAME##_convolve_part(const void *work, const op_index part, char *scratch) {                               \
    const NAME##_convolution *const o = (const NAME##_convolution *)work;                                              \
    const op_windows *const z = o->z;                                                                                  \
    const op_index taps = o->is_columns ? 1 : z->k[0] * z->k[1], depth = z->channels * z->k[0] * z->k[1];              \
    const op_index all = z->images * o->places, first = part % o->pieces * o->length;                                  \
    const op_index last = OP_LEAST(first + o->length, all), begin = part / o->pieces * 2 * W;                          \
    const op_index end = o->is_columns ? o->out : OP_LEAST(begin + 2 * W, o->out);                                     \
    const op_index step = o->is_columns ? OP_PIXELS : OP_MOST(last - first, 1);                                        \
    T *const panel = (T *)(void *)scratch, *const sums = panel + o->k * taps * 2 * W;                                  \
    T *const columns = sums + OP_PIXELS * 2 * W;                                                                       \
    op_index from[OP_PIXELS], to[OP_PIXELS];                                                                           \
    for (op_index block = first; block < last; block += step) {                                                        \
        const op_index stop = OP_LEAST(block + step, last);                                                            \
        if (o->is_columns) NAME##_gather_columns(z, block, stop - block, o->pitch, o->x, columns);                     \
        for (op_index column = begin; column < end; column += 2 * W) {                                                 \
            const int vectors = o->out - column > W ? 2 : 1;                                                           \
            const op_index some = OP_LEAST(o->out - column, 2 * W);                                                    \
            if (o->is_transposed)                                                                                      \
                NAME##_pack_channels(depth, taps, z->outputs, some, vectors, o->w + column * taps, panel);             \
            else                                                                                                       \
                NAME##_pack_outputs(depth, taps, some, vectors, o->w + column * depth, panel);                         \
            for (op_index start = block; start < stop; start += OP_PIXELS) {                                           \
                const op_index count = OP_LEAST(OP_PIXELS, stop - start);                                              \
                memset(sums, 0, (size_t)(count * vectors * W) * sizeof(T));                                            \
                for (op_index tap = 0; tap < taps; ++tap) {                                                            \
                    op_index n = count;                                                                                \
                    if (o->is_columns) for (op_index q = 0; q < count; ++q) from[q] = to[q] = q;                       \
                    else n = op_pair(z, o->is_transposed, tap, start, count, from, to);                                \
                    NAME##_add_all_rows(vectors, n, o->k, o->pitch, from, to, o->is_columns ? columns : o->pixels,     \
                                        panel + tap * o->k * vectors * W, sums);                                       \
                }                                                                                                      \
                NAME##_put_planes(vectors, start, count, o->places, z->groups * o->out, some,                          \
                                  o->bias ? o->bias + column : (const T *)0, sums, o->y + column * o->places);         \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* A convolution by Winograd's tiles, of pixels that are laid out. */                                                  \
static void NAME##_filter(const NAME##_convolution *o, const op_index threads, T *scratch) {                           \
    const op_windows *const z = o->z;                                                                                  \
    const op_index panels = OP_QUOTIENT_UP(o->out, 2 * W), held = OP_RAISED / (16 * o->in * 2 * W);                    \
    NAME##_winograd v = {z, o->w, o->bias, o->y, o->pixels, o->in, o->out, {0, 0}, {0, 0}, {0, 0}, {0, 0}, o->pitch,   \
                         OP_MOST(OP_LEAST(panels, held), 1), 1, 0, o->is_transposed};                                  \
    for (int i = 0; i < 2; ++i) {                                                                                      \
        v.in_size[i] = o->is_transposed ? z->y[i] : z->x[i];                                                           \
        v.size[i] = o->is_transposed ? z->x[i] : z->y[i];                                                              \
        v.margin[i] = o->is_transposed ? 2 - z->before[i] : z->before[i];                                              \
        v.tiles[i] = OP_QUOTIENT_UP(v.size[i], 2);                                                                     \
    }                                                                                                                  \
    const op_index rows = z->images * v.tiles[0], step = OP_TILES_SEEN / v.tiles[1];                                   \
    const op_index strips = OP_QUOTIENT_UP(panels, v.panels);                                                          \
    const op_index pieces = threads == 1 ? 1 : OP_QUOTIENT_UP(2 * threads, strips);                                    \
    const op_index local = (v.panels * 16 + 9) * v.in * 2 * W + OP_TILES_SEEN * (16 * v.pitch + 20 * 2 * W);           \
    v.length = OP_ROUND_UP(OP_QUOTIENT_UP(rows, pieces), step) * v.tiles[1];                                           \
    v.pieces = OP_QUOTIENT_UP(rows * v.tiles[1], v.length);                                                            \
    op_share(NAME##_winograd_part, &v, strips * v.pieces, threads,                                                     \
             (char *)(scratch + z->images * o->in_places * o->pitch), (size_t)local * sizeof(T));                      \
}                                                                                                                      \
                                                                                                                       \
OP_KERNEL void op_convolve_##S(const op_windows z, const int is_transposed, const T *x, const T *w, const T *bias,     \
                               T *y, T *scratch, const op_index threads) {                                             \
    const op_index taps = z.k[0] * z.k[1], x_places = z.x[0] * z.x[1], y_places = z.y[0] * z.y[1];                     \
    NAME##_convolution o = {&z, x, w, bias, y, scratch, z.channels, z.outputs, x_places, y_places, 0, 0, 1, 0,         \
                            is_transposed, !is_transposed && z.channels < OP_FEW};                                     \
    if (is_transposed) o.in = z.outputs, o.out = z.channels, o.in_places = y_places, o.places = x_places;              \
    o.k = o.is_columns ? z.channels * taps : o.in;                                                                     \
    o.pitch = OP_PITCH(o.k);                                                                                           \
    const op_index pixels = o.is_columns ? 0 : z.images * o.in_places * o.pitch, all = z.images * o.places;            \
    const op_index local = o.in * taps * 2 * W + OP_PIXELS * (2 * W + (o.is_columns ? o.pitch : 0));                   \
    const op_index panels = o.is_columns ? 1 : OP_QUOTIENT_UP(o.out, 2 * W);                                           \
    const op_index most = threads == 1 ? 1 : OP_QUOTIENT_UP(2 * threads, panels);                                      \
    o.length = OP_ROUND_UP(OP_QUOTIENT_UP(all, most), OP_PIXELS);                                                      \
    o.pieces = OP_QUOTIENT_UP(all, o.length);                                                                          \
    for (op_index group = 0; group < z.groups; ++group) {                                                              \
        o.x = x + group * o.in * o.in_places;                                                                          \
        o.w = w + group * z.outputs * z.channels * taps;                                                               \
        o.bias = bias ? bias + group * o.out : bias;                                                                   \
        o.y = y + group * o.out * o.places;                                                                            \
        if (!o.is_columns) op_share(NAME##_lay_out_part, &o, z.images, threads, (char *)scratch, 0);                   \
        if (op_suits_winograd(&z, is_transposed)) {                                                                    \
            NAME##_filter(&o, threads, scratch);                                                                       \
            continue;                                                                                                  \
        }                                                                                                              \
        op_share(NAME##_convolve_part, &o, panels * o.pieces, threads, (char *)(scratch + pixels),                     \
                 (size_t)local * sizeof(T));                                                                           \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* Kernels of some outputs: alpha times sums (taps, rows, columns) plus beta d, for channels from `first` on. */       \
static void NAME##_put_kernels(const int vectors, const op_index taps, const op_index rows, const op_index channels,   \
                               const op_index depth, const op_index outputs, const T alpha, const T beta,              \
                               const T *d, const T *sums, T *w) {                                                      \
    const op_index whole = channels * taps;                                                                            \
    for (int j = 0; j < vectors; ++j) {                                                                                \
        const op_index some = OP_LEAST(W, outputs - j * W);                                                            \
        op_index c = 0, tap = 0;                                                                                       \
        for (op_index p = 0; p < whole; p += W) {                                                                      \
            const op_index length = OP_LEAST(W, whole - p);                                                            \
            V v[W];                                                                                                    \
            for (int i = 0; i < W; ++i) {                                                                              \
                v[i] = *(const V *)(sums + ((tap * rows + c) * vectors + j) * W);                                      \
                if (i < length - 1 && ++tap == taps) tap = 0, ++c;                                                     \
            }                                                                                                          \
            if (++tap == taps) tap = 0, ++c;                                                                           \
            NAME##_exchange_all(v);                                                                                    \
            for (op_index i = 0; i < some; ++i) {                                                                      \
                const op_index at = (j * W + i) * depth + p;                                                           \
                V sum = alpha * v[i];                                                                                  \
                if (beta != 0) sum += beta * NAME##_load(d + at, length);                                              \
                NAME##_store(w + at, sum, length);                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
                                                                                                                       \
/* The gradient by the kernels from x and the gradient by y: alpha times it, plus beta d, which may be w itself. */    \
typedef struct {                                                                                                       \
    const op_windows *z;                                                                                               \
    const T *x, *y, *d;                                                                                                \
    T *w, *left, *right, *sums;                                                                                        \
    T alpha, beta;                                                                                                     \
    op_index rows, taps, x_pitch, y_pitch, block, blocks, first, last;                                                 \
    int is_columns;                                                                                                    \
    T *seen, *spread;                                                                                                  \
    op_index tiles;                                                                                                    \
} NAME##_correlation;                                                                                                  \
                                                                                                                       \
static void NAME##_lay_out_both(const void *work, const op_index image, char *scratch) {                               \
    const NAME##_correlation *const o = (const NAME##_correlation *)work;                                              \
    const op_windows *const z = o->z;                                                                                  \
    const op_index x_places = z->x[0] * z->x[1], y_places = z->y[0] * z->y[1];                                         \
    if (!o->is_columns)                                                                                                \
        NAME##_lay_out(z->channels, x_places, o->x_pitch, o->x + image * z->groups * z->channels * x_places,           \
                       o->left + image * x_places * o->x_pitch);                                                       \
    NAME##_lay_out(z->outputs, y_places, o->y_pitch, o->y + image * z->groups * z->outputs * y_places,                 \
                   o->right + image * y_places * o->y_pitch);                                                          \
    (void)scratch;                                                                                                     \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_gather_part(const void *work, const op_index part, char *scratch) {                                 \
    const NAME##_correlation *const o = (const NAME##_correlation *)work;                                              \
    const op_index start = part * OP_PLACES, count = OP_LEAST(OP_PLACES, o->last - o->first - start);                  \
    NAME##_gather_columns(o->z, o->first + start, count, o->x_pitch, o->x, o->left + start * o->x_pitch);              \
    (void)scratch;                                                                                                     \
}                                                                                                                      \
                                                                                                                       \
/* Some columns of some rows. */                                                                                       \
static void NAME##_correlate_part(const void *work, const op_index part, char *scratch) {                              \
    const NAME##_correlation *const o = (const NAME##_correlation *)work;                                              \
    const op_windows *const z = o->z;                                                                                  \
    const op_index depth = z->channels * z->k[0] * z->k[1], all = z->images * z->y[0] * z->y[1];                       \
    const op_index c = part % o->blocks * o->block, column = part / o->blocks * 2 * W;                                 \
    const op_index some = OP_LEAST(o->block, o->rows - c), height = OP_ROUND_UP(some, 4);                              \
    const op_index at = column * depth + c * o->taps;                                                                  \
    const int vectors = z->outputs - column > W ? 2 : 1;                                                               \
    T *const sums = o->is_columns ? o->sums + column * height : (T *)(void *)scratch;                                  \
    op_index from[OP_PLACES], to[OP_PLACES];                                                                           \
    if (o->first == 0) memset(sums, 0, (size_t)(o->taps * height * vectors * W) * sizeof(T));                          \
    for (op_index start = o->first; start < o->last; start += OP_PLACES) {                                             \
        const op_index count = OP_LEAST(OP_PLACES, o->last - start);                                                   \
        for (op_index tap = 0; tap < o->taps; ++tap) {                                                                 \
            op_index n = count;                                                                                        \
            if (o->is_columns) for (op_index q = 0; q < count; ++q) from[q] = start - o->first + q, to[q] = q;         \
            else n = op_pair(z, 0, tap, start, count, from, to);                                                       \
            NAME##_add_all_outer(vectors, height, n, o->x_pitch, o->y_pitch, from, to, o->left + c,                    \
                                 o->right + start * o->y_pitch + column, sums + tap * height * vectors * W);           \
        }                                                                                                              \
    }                                                                                                                  \
    if (o->last == all)                                                                                                \
        NAME##_put_kernels(vectors, o->taps, height, some, depth, OP_LEAST(z->outputs - column, 2 * W), o->alpha,      \
                           o->beta, o->d + at, sums, o->w + at);                                                       \
}                                                                                                                      \
                                                                                                                       \
/* The same by Winograd's tiles: products of the tiles of x and of y, block by block of tiles. */                      \
static void NAME##_see_part(const void *work, const op_index part, char *scratch) {                                    \
    const NAME##_correlation *const o = (const NAME##_correlation *)work;                                              \
    const op_windows *const z = o->z;                                                                                  \
    const op_index tiles[2] = {OP_QUOTIENT_UP(z->y[0], 2), OP_QUOTIENT_UP(z->y[1], 2)};                                \
    if (part == 0)                                                                                                     \
        NAME##_see_tiles(z->x, z->before, tiles, o->first, o->last - o->first, o->x_pitch, o->left, o->seen);          \
    else                                                                                                               \
        NAME##_spread_tiles(z->y, tiles, o->first, o->last - o->first, o->y_pitch, o->right, o->spread);               \
    (void)scratch;                                                                                                     \
}                                                                                                                      \
                                                                                                                       \
static void NAME##_raise_part(const void *work, const op_index part, char *scratch) {                                  \
    const NAME##_correlation *const o = (const NAME##_correlation *)work;                                              \
    const op_index c = part % o->blocks * o->block, column = part / o->blocks * 2 * W, count = o->last - o->first;     \
    const op_index some = OP_LEAST(o->block, o->rows - c), height = OP_ROUND_UP(some, 4);                              \
    const op_index whole = OP_ROUND_UP(o->rows, 4), at = column * o->z->channels * 9 + c * 9;                          \
    const int vectors = o->z->outputs - column > W ? 2 : 1;                                                            \
    T *const sums = o->sums + 16 * (column * whole + c * vectors * W);                                                 \
    op_index each[OP_TILES_SEEN];                                                                                      \
    for (op_index n = 0; n < count; ++n) each[n] = n;                                                                  \
    if (o->first == 0) memset(sums, 0, (size_t)(16 * height * vectors * W) * sizeof(T));                               \
    for (op_index q = 0; q < 16; ++q)                                                                                  \
        NAME##_add_all_outer(vectors, height, count, o->x_pitch, o->y_pitch, each, each,                               \
                             o->seen + q * count * o->x_pitch + c, o->spread + q * count * o->y_pitch + column,        \
                             sums + q * height * vectors * W);                                                         \
    if (o->last < o->tiles) return;                                                                                    \
    NAME##_lower_kernels(height * vectors * W, sums, (T *)(void *)scratch);                                            \
    NAME##_put_kernels(vectors, 9, height, some, o->z->channels * 9, OP_LEAST(o->z->outputs - column, 2 * W), o->alpha,\
                       o->beta, o->d + at, (const T *)(const void *)scratch, o->w + at);                               \
}                                                                                                                      \
                                                                                                                       \
OP_KERNEL void op_correlate_##S(const op_windows z, const T *x, const T *y, const T *d, T *w, T *scratch,              \
                                const op_index threads, const T alpha, const T beta) {                                 \
    const op_index taps = z.k[0] * z.k[1], all = z.images * z.y[0] * z.y[1], panels = OP_QUOTIENT_UP(z.outputs, 2 * W);\
    NAME##_correlation o = {&z, x, y, d, w, scratch, scratch, scratch, alpha, beta, z.channels, taps, 0,               \
                            OP_PITCH(z.outputs), 0, 1, 0, all, z.channels < OP_FEW, 0, 0, 0};                          \
    if (o.is_columns) o.rows = z.channels * taps, o.taps = 1;                                                          \
    o.x_pitch = OP_PITCH(o.rows);                                                                                      \
    o.block = o.is_columns ? o.rows : OP_LEAST(OP_ROUND_UP(OP_MOST(OP_DEEP / taps, 1), OP_STRIP), o.rows);             \
    o.blocks = OP_QUOTIENT_UP(o.rows, o.block);                                                                        \
    const op_index step = o.is_columns ? OP_LEAST(OP_GATHERED, all) : all;                                             \
    const op_index local = OP_ROUND_UP(o.block, 4) * o.taps * 2 * W;                                                   \
    o.right = o.left + (o.is_columns ? step : z.images * z.x[0] * z.x[1]) * o.x_pitch;                                 \
    o.sums = o.right + all * o.y_pitch;                                                                                \
    for (op_index group = 0; group < z.groups; ++group) {                                                              \
        o.x = x + group * z.channels * z.x[0] * z.x[1];                                                                \
        o.y = y + group * z.outputs * z.y[0] * z.y[1];                                                                 \
        o.d = d + (beta == 0 ? 0 : group * z.outputs * z.channels * taps);                                             \
        o.w = w + group * z.outputs * z.channels * taps;                                                               \
        op_share(NAME##_lay_out_both, &o, z.images, threads, (char *)scratch, 0);                                      \
        if (op_suits_winograd(&z, 0)) {                                                                                \
            o.tiles = z.images * OP_QUOTIENT_UP(z.y[0], 2) * OP_QUOTIENT_UP(z.y[1], 2);                                \
            o.seen = o.sums;                                                                                           \
            o.spread = o.seen + 16 * OP_TILES_SEEN * o.x_pitch;                                                        \
            o.sums = o.spread + 16 * OP_TILES_SEEN * o.y_pitch;                                                        \
            T *const rest = o.sums + 16 * OP_ROUND_UP(z.channels, 4) * OP_ROUND_UP(z.outputs, 2 * W);                  \
            for (o.first = 0; o.first < o.tiles; o.first += OP_TILES_SEEN) {                                           \
                o.last = OP_LEAST(o.first + OP_TILES_SEEN, o.tiles);                                                   \
                op_share(NAME##_see_part, &o, 2, threads, (char *)scratch, 0);                                         \
                op_share(NAME##_raise_part, &o, panels * o.blocks, threads, (char *)rest, (size_t)local * sizeof(T));  \
            }                                                                                                          \
            o.sums = o.seen;                                                                                           \
            continue;                                                                                                  \
        }                                                                                                              \
        for (o.first = 0; o.first < all; o.first += step) {                                                            \
            o.last = OP_LEAST(o.first + step, all);                                                                    \
            if (o.is_columns)                                                                                          \
                op_share(NAME##_gather_part, &o, OP_QUOTIENT_UP(o.last - o.first, OP_PLACES), threads,                 \
                         (char *)scratch, 0);                                                                          \
            op_share(NAME##_correlate_part, &o, panels * o.blocks, threads, (char *)o.sums, (size_t)local * sizeof(T));\
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \

#if OP_LANES == 16
OP_DEFINE_CONVOLUTION(op_f16, f, float, op_float16, 16)
OP_DEFINE_CONVOLUTION(op_d8, d, double, op_double8, 8)
#elif OP_LANES == 8
OP_DEFINE_CONVOLUTION(op_f8, f, float, op_float8, 8)
OP_DEFINE_CONVOLUTION(op_d4, d, double, op_double4, 4)
#elif OP_LANES == 4
OP_DEFINE_CONVOLUTION(op_f4, f, float, op_float4, 4)
OP_DEFINE_CONVOLUTION(op_d2, d, double, op_double2, 2)
#else
OP_DEFINE_CONVOLUTION(op_f1, f, float, float, 1)
OP_DEFINE_CONVOLUTION(op_d1, d, double, double, 1)
#endif
