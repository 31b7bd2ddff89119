"""The kernels of the transforms in C."""

from __future__ import annotations

from deep5.networks.philox import C_SOURCE

__all__ = ["SOURCE"]

SOURCE = (
    C_SOURCE
    + """#include <string.h>
void words(uint32_t *out, const int64_t *ids, int64_t count, uint32_t block, uint32_t k, uint32_t l) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t a = (uint32_t)(uint64_t)ids[i], b = (uint32_t)((uint64_t)ids[i] >> 32), c = block, d = 0;
        uint32_t first = k, second = l;
        for (unsigned round = 0; round < PHILOX_ROUNDS; round++) {
            PHILOX_ROUND(a, b, c, d, first, second);
            first += PHILOX_I0; second += PHILOX_I1;
        }
        out[i] = a; out[count + i] = b; out[2 * count + i] = c; out[3 * count + i] = d;
    }
}
static int64_t inside(int64_t begin, int64_t size, int64_t kept, int64_t *first) {
    int64_t end = size - begin < kept ? size - begin : kept;
    *first = begin < 0 ? -begin : 0;
    return end;
}
void crop(char *out, const char *in, int64_t count, int64_t planes, int64_t height, int64_t width, int64_t rows,
          int64_t columns, int64_t item, const int64_t *top, const int64_t *left, const char *filling) {
    const int64_t line = columns * item, whole = planes * rows * line;
    int same = 1;
    for (int64_t j = 1; j < line; j++) same &= filling[j] == filling[0];
    for (int64_t i = 0; i < count; i++, out += whole) {
        int64_t first, begin;
        const int64_t last = inside(top[i], height, rows, &first), end = inside(left[i], width, columns, &begin);
        if (first || begin || last < rows || end < columns) {
            if (same) memset(out, filling[0], whole);
            else for (int64_t j = 0; j < planes * rows; j++) memcpy(out + j * line, filling, line);
        }
        if (end <= begin) continue;
        for (int64_t plane = 0; plane < planes; plane++) {
            const char *from = in + (((i * planes + plane) * height + top[i]) * width + left[i] + begin) * item;
            char *to = out + plane * rows * line + begin * item;
            for (int64_t row = first; row < last; row++)
                memcpy(to + row * line, from + row * width * item, (end - begin) * item);
        }
    }
}
void blot(char *out, int64_t count, int64_t planes, int64_t height, int64_t width, int64_t side, int64_t item,
          const int64_t *top, const int64_t *left, const char *filling) {
    for (int64_t i = 0; i < count; i++) {
        int64_t first = top[i] < 0 ? 0 : top[i], begin = left[i] < 0 ? 0 : left[i];
        int64_t last = top[i] + side < height ? top[i] + side : height;
        int64_t end = left[i] + side < width ? left[i] + side : width;
        for (int64_t plane = 0; plane < planes; plane++, out += height * width * item)
            for (int64_t row = first; row < last && begin < end; row++)
                memcpy(out + (row * width + begin) * item, filling, (end - begin) * item);
    }
}
#define FLIP(NAME, TYPE) \\
void NAME(TYPE *out, const TYPE *in, int64_t count, int64_t lines, int64_t width, const uint8_t *chosen) { \\
    for (int64_t i = 0; i < count; i++, out += lines * width, in += lines * width) { \\
        if (!chosen[i]) { memcpy(out, in, lines * width * sizeof(TYPE)); continue; } \\
        for (int64_t line = 0; line < lines; line++) \\
            for (int64_t j = 0; j < width; j++) out[line * width + j] = in[line * width + width - 1 - j]; \\
    } \\
}
FLIP(flip_1, uint8_t) FLIP(flip_2, uint16_t) FLIP(flip_4, uint32_t) FLIP(flip_8, uint64_t)
#define NORMALISE(NAME, FROM, TO) \\
void NAME(TO *out, const FROM *in, int64_t count, int64_t channels, int64_t size, const TO *scale, const TO *shift) { \\
    for (int64_t i = 0; i < count; i++) \\
        for (int64_t c = 0; c < channels; c++, out += size, in += size) \\
            for (int64_t j = 0; j < size; j++) out[j] = (TO)in[j] * scale[c] + shift[c]; \\
}
NORMALISE(normalise_uint8, uint8_t, float) NORMALISE(normalise_float32, float, float)
NORMALISE(normalise_float64, double, double)
#define RESAMPLE(NAME, TYPE) \\
void rows_##NAME(TYPE *out, const TYPE *in, int64_t planes, int64_t old, int64_t new, int64_t width, int64_t taps, \\
                 const int64_t *place, const TYPE *weight) { \\
    for (int64_t plane = 0; plane < planes; plane++, in += old * width) \\
        for (int64_t i = 0; i < new; i++, out += width) \\
            for (int64_t tap = 0; tap < taps; tap++) { \\
                const TYPE *line = in + place[tap * new + i] * width, w = weight[tap * new + i]; \\
                if (tap == 0) for (int64_t j = 0; j < width; j++) out[j] = line[j] * w; \\
                else for (int64_t j = 0; j < width; j++) out[j] += line[j] * w; \\
            } \\
} \\
void columns_##NAME(TYPE *out, const TYPE *in, int64_t lines, int64_t old, int64_t new, int64_t taps, \\
                    const int64_t *place, const TYPE *weight) { \\
    for (int64_t line = 0; line < lines; line++, in += old, out += new) \\
        for (int64_t tap = 0; tap < taps; tap++) { \\
            const int64_t *from = place + tap * new; \\
            const TYPE *w = weight + tap * new; \\
            if (tap == 0) for (int64_t j = 0; j < new; j++) out[j] = in[from[j]] * w[j]; \\
            else for (int64_t j = 0; j < new; j++) out[j] += in[from[j]] * w[j]; \\
        } \\
}
RESAMPLE(float32, float) RESAMPLE(float64, double)
"""
)
