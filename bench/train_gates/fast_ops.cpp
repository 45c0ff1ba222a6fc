// SPDX-License-Identifier: MIT
// CPU kernels (AVX-512 BF16 + AMX) used by train.py when the device is a CPU that has them.
// Build: g++ -O3 -march=sapphirerapids -fopenmp -shared -fPIC fast_ops.cpp -o fast_ops.so
// Attention works on packed qkv [B,T,(H+2*KV)*64] bf16 with interleaved RoPE pairs, head_dim 64, T % 32 == 0.
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef uint16_t bf;
static const int HD = 64;

static inline __m512 ld16(const bf* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline __m256i cv16(__m512 x) {
    return (__m256i)_mm512_cvtneps_pbh(x);
}
static inline void st16(bf* p, __m512 x) {
    _mm256_storeu_si256((__m256i*)p, cv16(x));
}
static inline __m512i pair(__m256i lo, __m256i hi) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
}

static inline __m512 exp2v(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-120.f));
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
           f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.3333558e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
    return _mm512_scalef_ps(p, n);
}

struct TileCfg {
    uint8_t palette, start;
    uint8_t rsv[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};
static void tiles_on() {
    alignas(64) TileCfg c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.colsb[i] = 64;
        c.rows[i] = 16;
    }
    _tile_loadconfig(&c);
}

extern "C" int fast_init() {
    return (int)syscall(SYS_arch_prctl, 0x1023 /*ARCH_REQ_XCOMP_PERM*/, 18 /*XTILEDATA*/);
}

// rotate the 32 interleaved pairs of one row; sgn=-1 gives the inverse rotation
static inline void rope_pair(__m512 a, __m512 b, const float* c, const float* s, float sgn, uint32_t* dst) {
    __m512 C = _mm512_loadu_ps(c), S = _mm512_mul_ps(_mm512_loadu_ps(s), _mm512_set1_ps(sgn));
    __m512 x = _mm512_fmsub_ps(a, C, _mm512_mul_ps(b, S)), y = _mm512_fmadd_ps(a, S, _mm512_mul_ps(b, C));
    _mm512_storeu_si512(dst, pair(cv16(x), cv16(y)));
}
static inline void rope_row(const bf* src, uint32_t* dst, const float* c, const float* s) {
    for (int h = 0; h < 2; h++) {
        __m512i u = _mm512_loadu_si512(src + 32 * h);
        rope_pair(_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)),
                  _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(0xffff0000))), c + 16 * h,
                  s + 16 * h, 1.f, dst + 16 * h);
    }
}

static char* scratch(size_t bytes) {
    static thread_local char* p = 0;
    static thread_local size_t cap = 0;
    if (cap < bytes) {
        free(p);
        p = (char*)aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
        cap = bytes;
    }
    return p;
}
struct Arena {
    char* p;
    template <class T> T* get(size_t n) {
        T* r = (T*)p;
        p += (n * sizeof(T) + 127) & ~(size_t)63;
        return r;
    }
};

// B operand for X * M^T  (M: rows x 64): per 16 rows, 2 tiles of [16 k-pairs][16 rows]
static void pack_T(const uint32_t* M, int rows, uint32_t* out) {
    for (int n = 0; n < rows; n++) {
        const uint32_t* m = M + (size_t)n * 32;
        uint32_t* o = out + (size_t)(n / 16) * 512 + n % 16;
        for (int r = 0; r < 32; r++) o[r * 16] = m[r];
    }
}
// B operand for X * M  (M: rows x 64): per 32 rows, 4 tiles of [16 row-pairs][16 columns]
static void pack_P(const bf* M, size_t ld, int rows, uint32_t* out) {
    for (int r = 0; r < rows; r += 2)
        for (int d = 0; d < 4; d++) {
            __m256i a = _mm256_loadu_si256((const __m256i*)(M + r * ld + d * 16)),
                    b = _mm256_loadu_si256((const __m256i*)(M + (r + 1) * ld + d * 16));
            _mm512_store_si512(out + (size_t)(r / 32) * 1024 + d * 256 + (r % 32) / 2 * 16, pair(a, b));
        }
}

#define MUL4()                                                                                               \
    do {                                                                                                     \
        _tile_dpbf16ps(0, 4, 6);                                                                             \
        _tile_dpbf16ps(1, 4, 7);                                                                             \
        _tile_dpbf16ps(2, 5, 6);                                                                             \
        _tile_dpbf16ps(3, 5, 7);                                                                             \
    } while (0)
#define ZERO4()                                                                                              \
    do {                                                                                                     \
        _tile_zero(0);                                                                                       \
        _tile_zero(1);                                                                                       \
        _tile_zero(2);                                                                                       \
        _tile_zero(3);                                                                                       \
    } while (0)
#define STORE4(p, ldb)                                                                                       \
    do {                                                                                                     \
        _tile_stored(0, (p), (ldb));                                                                         \
        _tile_stored(1, (p) + 16, (ldb));                                                                    \
        _tile_stored(2, (char*)(p) + 16 * (ldb), (ldb));                                                     \
        _tile_stored(3, (char*)((p) + 16) + 16 * (ldb), (ldb));                                              \
    } while (0)
#define LOAD4(p, ldb)                                                                                        \
    do {                                                                                                     \
        _tile_loadd(0, (p), (ldb));                                                                          \
        _tile_loadd(1, (p) + 16, (ldb));                                                                     \
        _tile_loadd(2, (char*)(p) + 16 * (ldb), (ldb));                                                      \
        _tile_loadd(3, (char*)((p) + 16) + 16 * (ldb), (ldb));                                               \
    } while (0)

extern "C" void attn_fwd(const bf* qkv, bf* out, float* lse, const float* cs, const float* sn, int B, int T,
                         int H, int KV) {
    const int W = (H + 2 * KV) * HD, G = H / KV;
    const float sc = 0.125f * 1.44269504f;
#pragma omp parallel
    {
        tiles_on();
        size_t bytes = (size_t)T * 64 * 2 * 5 + (size_t)32 * (T + 16) * 6 + 65536;
        char* base = scratch(bytes);
#pragma omp for schedule(dynamic, 1)
        for (int u = 0; u < B * KV; u++) {
            int b = u / KV, g = u % KV;
            Arena A{base};
            uint32_t *row = A.get<uint32_t>((size_t)T * 32), *KT = A.get<uint32_t>((size_t)T * 32),
                     *VP = A.get<uint32_t>((size_t)T * 32);
            const int LS = T + 16;
            float* S = A.get<float>((size_t)32 * LS);
            bf* P = A.get<bf>((size_t)32 * (T + 32));
            const int LP = T + 32;
            float* Ob = A.get<float>(32 * 64);
            const bf* base0 = qkv + (size_t)b * T * W;
            for (int t = 0; t < T; t++)
                rope_row(base0 + (size_t)t * W + (H + g) * HD, row + t * 32, cs + t * 32, sn + t * 32);
            pack_T(row, T, KT);
            pack_P(base0 + (H + KV + g) * HD, W, T, VP);
            for (int hh = 0; hh < G; hh++) {
                int h = g * G + hh;
                for (int t = 0; t < T; t++)
                    rope_row(base0 + (size_t)t * W + h * HD, row + t * 32, cs + t * 32, sn + t * 32);
                const bf* Q = (const bf*)row;
                for (int i0 = 0; i0 < T; i0 += 32) {
                    int nkb = i0 / 32 + 1;
                    for (int kb = 0; kb < nkb; kb++) {
                        ZERO4();
                        for (int t = 0; t < 2; t++) {
                            _tile_loadd(4, Q + (size_t)i0 * 64 + t * 32, 128);
                            _tile_loadd(5, Q + (size_t)(i0 + 16) * 64 + t * 32, 128);
                            _tile_loadd(6, KT + (size_t)(2 * kb) * 512 + t * 256, 64);
                            _tile_loadd(7, KT + (size_t)(2 * kb + 1) * 512 + t * 256, 64);
                            MUL4();
                        }
                        float* s = S + kb * 32;
                        STORE4(s, LS * 4);
                    }
                    float inv[32];
                    for (int r = 0; r < 32; r++) {
                        float* s = S + (size_t)r * LS;
                        int len = i0 + r + 1, full = len & ~15, tail = len & 15;
                        __mmask16 tm = (__mmask16)((1u << tail) - 1);
                        const __m512 NI = _mm512_set1_ps(-1e30f);
                        __m512 mx = NI;
                        for (int k = 0; k < full; k += 16) mx = _mm512_max_ps(mx, _mm512_loadu_ps(s + k));
                        if (tail) mx = _mm512_max_ps(mx, _mm512_mask_loadu_ps(NI, tm, s + full));
                        float m = _mm512_reduce_max_ps(mx) * sc;
                        __m512 M = _mm512_set1_ps(m), C = _mm512_set1_ps(sc), sum = _mm512_setzero_ps();
                        bf* p = P + (size_t)r * LP;
                        for (int k = 0; k < full; k += 16) {
                            __m512 e = exp2v(_mm512_fmsub_ps(_mm512_loadu_ps(s + k), C, M));
                            sum = _mm512_add_ps(sum, e);
                            st16(p + k, e);
                        }
                        int k = full;
                        if (tail) {
                            __m512 e = _mm512_maskz_mov_ps(
                                tm, exp2v(_mm512_fmsub_ps(_mm512_mask_loadu_ps(NI, tm, s + k), C, M)));
                            sum = _mm512_add_ps(sum, e);
                            st16(p + k, e);
                            k += 16;
                        }
                        for (; k < nkb * 32; k += 16) st16(p + k, _mm512_setzero_ps());
                        float z = _mm512_reduce_add_ps(sum);
                        inv[r] = 1.f / z;
                        lse[((size_t)b * H + h) * T + i0 + r] = m + log2f(z);
                    }
                    for (int dp = 0; dp < 2; dp++) {
                        ZERO4();
                        for (int kb = 0; kb < nkb; kb++) {
                            _tile_loadd(4, P + kb * 32, LP * 2);
                            _tile_loadd(5, P + (size_t)16 * LP + kb * 32, LP * 2);
                            _tile_loadd(6, VP + (size_t)kb * 1024 + dp * 512, 64);
                            _tile_loadd(7, VP + (size_t)kb * 1024 + dp * 512 + 256, 64);
                            MUL4();
                        }
                        float* o = Ob + dp * 32;
                        STORE4(o, 256);
                    }
                    for (int r = 0; r < 32; r++)
                        for (int d = 0; d < 64; d += 16)
                            st16(out + ((size_t)b * T + i0 + r) * H * HD + h * HD + d,
                                 _mm512_mul_ps(_mm512_loadu_ps(Ob + r * 64 + d), _mm512_set1_ps(inv[r])));
                }
            }
        }
        _tile_release();
    }
}

extern "C" void attn_bwd(const bf* qkv, const bf* out, const bf* dout, const float* lse, bf* dqkv,
                         const float* cs, const float* sn, int B, int T, int H, int KV) {
    const int W = (H + 2 * KV) * HD, G = H / KV, OW = H * HD;
    const float sc = 0.125f * 1.44269504f;
#pragma omp parallel
    {
        tiles_on();
        size_t bytes = (size_t)T * 128 * 9 + (size_t)T * 256 * 3 + (size_t)32 * (T + 64) * 2 * 3 +
                       (size_t)T * 4 + 262144;
        char* base = scratch(bytes);
#pragma omp for schedule(dynamic, 1)
        for (int u = 0; u < B * KV; u++) {
            int b = u / KV, g = u % KV;
            Arena A{base};
            const size_t N32 = (size_t)T * 32;
            uint32_t *Kr = A.get<uint32_t>(N32), *Qr = A.get<uint32_t>(N32), *QT = A.get<uint32_t>(N32),
                     *QP = A.get<uint32_t>(N32), *DT = A.get<uint32_t>(N32), *DP = A.get<uint32_t>(N32),
                     *tmp = A.get<uint32_t>(N32);
            bf* KR = A.get<bf>((size_t)T * 64); // [T/32][64 d][32 keys]
            float *dQ = A.get<float>((size_t)T * 64), *dK = A.get<float>((size_t)T * 64),
                  *dV = A.get<float>((size_t)T * 64);
            const int LP = T + 32;
            bf *PT = A.get<bf>((size_t)32 * LP), *ST = A.get<bf>((size_t)32 * LP);
            uint32_t* SV = A.get<uint32_t>((size_t)16 * (T + 32)); // [q tile][16 key pairs][16 q]
            float* del = A.get<float>(T);
            float *b1 = A.get<float>(1024), *b2 = A.get<float>(1024);
            const bf *q0 = qkv + (size_t)b * T * W, *V0 = q0 + (H + KV + g) * HD;
            for (int t = 0; t < T; t++)
                rope_row(q0 + (size_t)t * W + (H + g) * HD, Kr + t * 32, cs + t * 32, sn + t * 32);
            for (int t = 0; t < T; t++)
                for (int d = 0; d < 64; d++)
                    KR[(size_t)(t / 32) * 2048 + d * 32 + t % 32] = ((bf*)Kr)[t * 64 + d];
            memset(dK, 0, (size_t)T * 256);
            memset(dV, 0, (size_t)T * 256);
            for (int hh = 0; hh < G; hh++) {
                int h = g * G + hh;
                const float* L = lse + ((size_t)b * H + h) * T;
                for (int t = 0; t < T; t++)
                    rope_row(q0 + (size_t)t * W + h * HD, Qr + t * 32, cs + t * 32, sn + t * 32);
                pack_T(Qr, T, QT);
                pack_P((bf*)Qr, 64, T, QP);
                const bf *d0 = dout + (size_t)b * T * OW + h * HD, *o0 = out + (size_t)b * T * OW + h * HD;
                for (int t = 0; t < T; t++) {
                    memcpy(tmp + t * 32, d0 + (size_t)t * OW, 128);
                    __m512 s = _mm512_setzero_ps();
                    for (int d = 0; d < 64; d += 16)
                        s = _mm512_fmadd_ps(ld16(d0 + (size_t)t * OW + d), ld16(o0 + (size_t)t * OW + d), s);
                    del[t] = _mm512_reduce_add_ps(s);
                }
                pack_T(tmp, T, DT);
                pack_P((bf*)tmp, 64, T, DP);
                memset(dQ, 0, (size_t)T * 256);
                for (int j0 = 0; j0 < T; j0 += 32) {
                    for (int i0 = j0; i0 < T; i0 += 32) {
                        ZERO4();
                        for (int t = 0; t < 2; t++) {
                            _tile_loadd(4, (bf*)Kr + (size_t)j0 * 64 + t * 32, 128);
                            _tile_loadd(5, (bf*)Kr + (size_t)(j0 + 16) * 64 + t * 32, 128);
                            _tile_loadd(6, QT + (size_t)(i0 / 16) * 512 + t * 256, 64);
                            _tile_loadd(7, QT + (size_t)(i0 / 16 + 1) * 512 + t * 256, 64);
                            MUL4();
                        }
                        STORE4(b1, 128);
                        ZERO4();
                        for (int t = 0; t < 2; t++) {
                            _tile_loadd(4, V0 + (size_t)j0 * W + t * 32, W * 2);
                            _tile_loadd(5, V0 + (size_t)(j0 + 16) * W + t * 32, W * 2);
                            _tile_loadd(6, DT + (size_t)(i0 / 16) * 512 + t * 256, 64);
                            _tile_loadd(7, DT + (size_t)(i0 / 16 + 1) * 512 + t * 256, 64);
                            MUL4();
                        }
                        STORE4(b2, 128);
                        int col = i0 - j0;
                        const __m512 C = _mm512_set1_ps(sc), E = _mm512_set1_ps(0.125f);
                        for (int c = 0; c < 32; c += 16) {
                            __m512 Lv = _mm512_loadu_ps(L + i0 + c), Dv = _mm512_loadu_ps(del + i0 + c);
                            for (int r = 0; r < 32; r += 2) {
                                __m256i dsb[2];
                                for (int x = 0; x < 2; x++) {
                                    __m512 p =
                                        exp2v(_mm512_fmsub_ps(_mm512_loadu_ps(b1 + (r + x) * 32 + c), C, Lv));
                                    if (i0 == j0) {
                                        int lo = r + x - c; // keep lanes >= lo
                                        __mmask16 m = lo <= 0    ? 0xffff
                                                      : lo >= 16 ? 0
                                                                 : (__mmask16)(0xffff << lo);
                                        p = _mm512_maskz_mov_ps(m, p);
                                    }
                                    __m512 ds = _mm512_mul_ps(
                                        _mm512_mul_ps(p, E),
                                        _mm512_sub_ps(_mm512_loadu_ps(b2 + (r + x) * 32 + c), Dv));
                                    st16(PT + (size_t)(r + x) * LP + col + c, p);
                                    dsb[x] = cv16(ds);
                                    _mm256_storeu_si256((__m256i*)(ST + (size_t)(r + x) * LP + col + c),
                                                        dsb[x]);
                                }
                                _mm512_store_si512(SV + (size_t)((col + c) / 16) * 256 + r / 2 * 16,
                                                   pair(dsb[0], dsb[1]));
                            }
                        }
                    }
                    int nq = (T - j0) / 32;
                    for (int w = 0; w < 2; w++) {
                        const bf* Am = w ? ST : PT;
                        const uint32_t* Bm = (w ? QP : DP) + (size_t)(j0 / 32) * 1024;
                        float* acc = (w ? dK : dV) + (size_t)j0 * 64;
                        for (int dp = 0; dp < 2; dp++) {
                            float* a = acc + dp * 32;
                            LOAD4(a, 256);
                            for (int qb = 0; qb < nq; qb++) {
                                _tile_loadd(4, Am + qb * 32, LP * 2);
                                _tile_loadd(5, Am + (size_t)16 * LP + qb * 32, LP * 2);
                                _tile_loadd(6, Bm + (size_t)qb * 1024 + dp * 512, 64);
                                _tile_loadd(7, Bm + (size_t)qb * 1024 + dp * 512 + 256, 64);
                                MUL4();
                            }
                            STORE4(a, 256);
                        }
                    }
                    for (int dh = 0; dh < 2;
                         dh++) { // dQ^T (64 d x q) += K_j^T dS^T ; stored per 16 q as [64 d][16 q]
                        const bf* kk = KR + (size_t)(j0 / 32) * 2048 + dh * 32 * 32;
                        _tile_loadd(4, kk, 64);
                        _tile_loadd(5, kk + 16 * 32, 64);
                        for (int qt = 0; qt < nq * 2; qt += 2) {
                            float *a0 = dQ + (size_t)(j0 / 16 + qt) * 1024 + dh * 512, *a1 = a0 + 1024;
                            _tile_loadd(0, a0, 64);
                            _tile_loadd(1, a1, 64);
                            _tile_loadd(2, a0 + 256, 64);
                            _tile_loadd(3, a1 + 256, 64);
                            _tile_loadd(6, SV + (size_t)qt * 256, 64);
                            _tile_loadd(7, SV + (size_t)(qt + 1) * 256, 64);
                            MUL4();
                            _tile_stored(0, a0, 64);
                            _tile_stored(1, a1, 64);
                            _tile_stored(2, a0 + 256, 64);
                            _tile_stored(3, a1 + 256, 64);
                        }
                    }
                }
                for (int t = 0; t < T; t++) {
                    alignas(64) float a[32], c[32];
                    const float* s = dQ + (size_t)(t / 16) * 1024 + t % 16;
                    for (int i = 0; i < 32; i++) {
                        a[i] = s[(2 * i) * 16];
                        c[i] = s[(2 * i + 1) * 16];
                    }
                    uint32_t* dst = (uint32_t*)(dqkv + ((size_t)b * T + t) * W + h * HD);
                    for (int k = 0; k < 2; k++)
                        rope_pair(_mm512_load_ps(a + 16 * k), _mm512_load_ps(c + 16 * k),
                                  cs + t * 32 + 16 * k, sn + t * 32 + 16 * k, -1.f, dst + 16 * k);
                }
            }
            for (int t = 0; t < T; t++) {
                alignas(64) float a[32], c[32];
                for (int i = 0; i < 32; i++) {
                    a[i] = dK[t * 64 + 2 * i];
                    c[i] = dK[t * 64 + 2 * i + 1];
                }
                bf* d = dqkv + ((size_t)b * T + t) * W + (H + g) * HD;
                for (int k = 0; k < 2; k++)
                    rope_pair(_mm512_load_ps(a + 16 * k), _mm512_load_ps(c + 16 * k), cs + t * 32 + 16 * k,
                              sn + t * 32 + 16 * k, -1.f, (uint32_t*)d + 16 * k);
                d += KV * HD;
                for (int k = 0; k < 64; k += 16) st16(d + k, _mm512_loadu_ps(dV + t * 64 + k));
            }
        }
        _tile_release();
    }
}

// x (f32, updated in place with the bf16 branch output o when o != 0), y = bf16(rms(x) * w), saves 1/rms
extern "C" void addnorm_fwd(float* xn, const float* x, const bf* o, const float* w, bf* y, float* rstd, int N,
                            int D, float eps) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        __m512 s = _mm512_setzero_ps();
        const float* xi = x + (size_t)n * D;
        float* xo = xn + (size_t)n * D;
        for (int d = 0; d < D; d += 16) {
            __m512 v = _mm512_loadu_ps(xi + d);
            if (o) {
                v = _mm512_add_ps(v, ld16(o + (size_t)n * D + d));
                _mm512_storeu_ps(xo + d, v);
            }
            s = _mm512_fmadd_ps(v, v, s);
        }
        const float* xs = o ? xo : xi;
        float r = 1.f / sqrtf(_mm512_reduce_add_ps(s) / D + eps);
        rstd[n] = r;
        for (int d = 0; d < D; d += 16)
            st16(y + (size_t)n * D + d,
                 _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(xs + d), _mm512_set1_ps(r)),
                               _mm512_loadu_ps(w + d)));
    }
}
// gx = gxn (may be 0) + d rms; go (may be 0) = bf16(gx); gw accumulated (size D, zeroed by the caller)
extern "C" void addnorm_bwd(const float* xn, const float* w, const float* rstd, const bf* gy,
                            const float* gxn, float* gx, bf* go, float* gw, int N, int D) {
#pragma omp parallel
    {
        float* lw = (float*)alloca(D * 4 + 64);
        memset(lw, 0, D * 4);
#pragma omp for schedule(static)
        for (int n = 0; n < N; n++) {
            const float* x = xn + (size_t)n * D;
            const bf* g = gy + (size_t)n * D;
            __m512 dot = _mm512_setzero_ps();
            for (int d = 0; d < D; d += 16)
                dot = _mm512_fmadd_ps(_mm512_mul_ps(ld16(g + d), _mm512_loadu_ps(w + d)),
                                      _mm512_loadu_ps(x + d), dot);
            float r = rstd[n], c = _mm512_reduce_add_ps(dot) * r * r * r / D;
            __m512 R = _mm512_set1_ps(r), C = _mm512_set1_ps(c);
            for (int d = 0; d < D; d += 16) {
                __m512 xv = _mm512_loadu_ps(x + d), gv = ld16(g + d);
                __m512 v =
                    _mm512_fnmadd_ps(C, xv, _mm512_mul_ps(_mm512_mul_ps(gv, _mm512_loadu_ps(w + d)), R));
                _mm512_storeu_ps(lw + d, _mm512_fmadd_ps(_mm512_mul_ps(gv, xv), R, _mm512_loadu_ps(lw + d)));
                if (gxn) v = _mm512_add_ps(v, _mm512_loadu_ps(gxn + (size_t)n * D + d));
                _mm512_storeu_ps(gx + (size_t)n * D + d, v);
                if (go) st16(go + (size_t)n * D + d, v);
            }
        }
#pragma omp critical
        for (int d = 0; d < D; d++) gw[d] += lw[d];
    }
}
static inline __m512 sigm(__m512 x) {
    return _mm512_div_ps(
        _mm512_set1_ps(1.f),
        _mm512_add_ps(_mm512_set1_ps(1.f), exp2v(_mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)),
                                                               _mm512_set1_ps(120.f)))));
}
extern "C" void swiglu_fwd(const bf* gu, bf* y, int N, int F) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f += 16) {
            __m512 g = ld16(gu + (size_t)n * 2 * F + f), u = ld16(gu + (size_t)n * 2 * F + F + f);
            st16(y + (size_t)n * F + f, _mm512_mul_ps(_mm512_mul_ps(g, sigm(g)), u));
        }
}
extern "C" void swiglu_bwd(const bf* gu, const bf* gy, bf* d, int N, int F) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f += 16) {
            __m512 g = ld16(gu + (size_t)n * 2 * F + f), u = ld16(gu + (size_t)n * 2 * F + F + f),
                   y = ld16(gy + (size_t)n * F + f), s = sigm(g), gs = _mm512_mul_ps(g, s);
            st16(d + (size_t)n * 2 * F + F + f, _mm512_mul_ps(y, gs));
            __m512 ds = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_set1_ps(1.f), s), gs, s);
            st16(d + (size_t)n * 2 * F + f, _mm512_mul_ps(_mm512_mul_ps(y, u), ds));
        }
}
// nll per row; logits become (softmax - onehot) * wt[row]
extern "C" void ce(bf* lg, const int64_t* tgt, const float* wt, float* nll, int N, int V) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        bf* l = lg + (size_t)n * V;
        __m512 mx = _mm512_set1_ps(-1e30f);
        for (int v = 0; v < V; v += 16) mx = _mm512_max_ps(mx, ld16(l + v));
        const float c = 1.44269504f;
        float m = _mm512_reduce_max_ps(mx) * c;
        int64_t t = tgt[n];
        uint32_t tb = (uint32_t)l[t] << 16;
        float lt;
        memcpy(&lt, &tb, 4);
        __m512 s = _mm512_setzero_ps(), M = _mm512_set1_ps(m), C = _mm512_set1_ps(c);
        for (int v = 0; v < V; v += 16) s = _mm512_add_ps(s, exp2v(_mm512_fmsub_ps(ld16(l + v), C, M)));
        float z2 = m + log2f(_mm512_reduce_add_ps(s));
        nll[n] = z2 * 0.69314718f - lt;
        __m512 Z = _mm512_set1_ps(z2), Wt = _mm512_set1_ps(wt[n]);
        float pt = exp2f(lt * c - z2);
        for (int v = 0; v < V; v += 16)
            st16(l + v, _mm512_mul_ps(Wt, exp2v(_mm512_fmsub_ps(ld16(l + v), C, Z))));
        float gt = wt[n] * (pt - 1.f);
        uint32_t gb;
        memcpy(&gb, &gt, 4);
        l[t] = (bf)((gb + 0x7fff + ((gb >> 16) & 1)) >> 16);
    }
}

// Inclusive sums of 16 lanes.
static inline __m512 running_sum(__m512 x) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i s = _mm512_castps_si512(x);
    const auto add = [&](__m512i moved) {
        s = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(s), _mm512_castsi512_ps(moved)));
    };
    add(_mm512_alignr_epi32(s, zero, 15));
    add(_mm512_alignr_epi32(s, zero, 14));
    add(_mm512_alignr_epi32(s, zero, 12));
    add(_mm512_alignr_epi32(s, zero, 8));
    return _mm512_castsi512_ps(s);
}
static inline __m512 backwards(__m512 x) {
    return _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), x);
}

// p = softmax(logits + bias), in place; m = flip(running sum of p); y = c m, or with `hard` c where m > tau and 0 elsewhere.
// totals: sum of m, number of m > tau.
// logits [N,n] f32, c, y [N,n] bf16, n a multiple of 16.
extern "C" void gate_fwd(float* logits, const float* bias, const bf* c, bf* y, float tau, int hard,
                         double* totals, int N, int n) {
    double soft = 0, kept = 0;
#pragma omp parallel for schedule(static) reduction(+ : soft, kept)
    for (int row = 0; row < N; row++) {
        float* l = logits + (size_t)row * n;
        const size_t at = (size_t)row * n;
        __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
        for (int i = 0; i < n; i += 16) {
            const __m512 x = _mm512_add_ps(_mm512_loadu_ps(l + i), _mm512_loadu_ps(bias + i));
            _mm512_storeu_ps(l + i, x);
            most = _mm512_max_ps(most, x);
        }
        most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
        for (int i = 0; i < n; i += 16) {
            const __m512 e = exp2v(
                _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(l + i), most), _mm512_set1_ps(1.44269504f)));
            _mm512_storeu_ps(l + i, e);
            total = _mm512_add_ps(total, e);
        }
        const __m512 share = _mm512_set1_ps(1.f / _mm512_reduce_add_ps(total));
        float before = 0;
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < n; i += 16) {
            const __m512 p = _mm512_mul_ps(_mm512_loadu_ps(l + i), share);
            _mm512_storeu_ps(l + i, p);
            const __m512 s = _mm512_add_ps(running_sum(p), _mm512_set1_ps(before)), m = backwards(s);
            before = _mm512_cvtss_f32(m); // the last lane of s
            sum = _mm512_add_ps(sum, m);
            const __mmask16 stays = _mm512_cmp_ps_mask(m, _mm512_set1_ps(tau), _CMP_GT_OQ);
            kept += __builtin_popcount(stays);
            const __m512 by = hard ? _mm512_maskz_mov_ps(stays, _mm512_set1_ps(1.f)) : m;
            st16(y + at + n - 16 - i, _mm512_mul_ps(by, ld16(c + at + n - 16 - i)));
        }
        soft += _mm512_reduce_add_ps(sum);
    }
    totals[0] = soft;
    totals[1] = kept;
}

// From gy, the gradient of y, and gm, that of every m: dl [N,n] bf16 of the logits, dc [N,n] f32 of c by way of y alone,
// db [n] added to. A hard mask passes its gradient on as if it were m.
extern "C" void gate_bwd(const float* p, const bf* c, const bf* gy, float gm, float tau, int hard, bf* dl,
                         float* dc, float* db, int N, int n) {
#pragma omp parallel
    {
        float* own = (float*)alloca(n * 4 + 64);
        float* dp = (float*)alloca(n * 4 + 64);
        memset(own, 0, n * 4);
#pragma omp for schedule(static)
        for (int row = 0; row < N; row++) {
            const size_t at = (size_t)row * n;
            float before = 0;
            for (int i = 0; i < n; i += 16) { // m again
                const __m512 s =
                    _mm512_add_ps(running_sum(_mm512_loadu_ps(p + at + i)), _mm512_set1_ps(before));
                __m512 m = backwards(s);
                before = _mm512_cvtss_f32(m);
                if (hard)
                    m = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(m, _mm512_set1_ps(tau), _CMP_GT_OQ),
                                            _mm512_set1_ps(1.f));
                _mm512_storeu_ps(dc + at + n - 16 - i, _mm512_mul_ps(m, ld16(gy + at + n - 16 - i)));
            }
            before = 0;
            __m512 dot = _mm512_setzero_ps();
            for (int j = 0; j < n; j += 16) { // the gradient of p_i is the sum of those of m_j, j < n - i
                const __m512 dm = _mm512_fmadd_ps(ld16(gy + at + j), ld16(c + at + j), _mm512_set1_ps(gm));
                const __m512 s = _mm512_add_ps(running_sum(dm), _mm512_set1_ps(before)), d = backwards(s);
                before = _mm512_cvtss_f32(d);
                _mm512_storeu_ps(dp + n - 16 - j, d);
                dot = _mm512_fmadd_ps(d, _mm512_loadu_ps(p + at + n - 16 - j), dot);
            }
            const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(dot));
            for (int i = 0; i < n; i += 16) {
                const __m512 d =
                    _mm512_mul_ps(_mm512_loadu_ps(p + at + i), _mm512_sub_ps(_mm512_loadu_ps(dp + i), mean));
                st16(dl + at + i, d);
                _mm512_storeu_ps(own + i, _mm512_add_ps(_mm512_loadu_ps(own + i), d));
            }
        }
#pragma omp critical
        for (int i = 0; i < n; i++) db[i] += own[i];
    }
}

// C = A B^T, A [M,K], B [N,K] bf16, to f32 (cf) or to bf16 (cb). All extents are multiples of 32.
extern "C" void product(const bf* a, const bf* b, float* cf, bf* cb, int M, int N, int K) {
    uint32_t* packed = (uint32_t*)aligned_alloc(64, (size_t)N * K * 2);
#pragma omp parallel
    {
        tiles_on();
#pragma omp for schedule(static)
        for (int n = 0; n < N; n += 16) { // tile k of these 16 rows: [16 pairs of columns][16 rows]
            const uint32_t* from = (const uint32_t*)(b + (size_t)n * K);
            for (int k = 0; k < K / 2; k++)
                for (int r = 0; r < 16; r++)
                    packed[(size_t)n * (K / 2) + k * 16 + r] = from[(size_t)r * (K / 2) + k];
        }
        alignas(64) float block[32 * 32];
#pragma omp for collapse(2) schedule(static)
        for (int m = 0; m < M; m += 32)
            for (int n = 0; n < N; n += 32) {
                const bf* rows = a + (size_t)m * K;
                const uint32_t *left = packed + (size_t)n * (K / 2), *right = left + (size_t)16 * (K / 2);
                ZERO4();
                for (int k = 0; k < K; k += 32) {
                    _tile_loadd(4, rows + k, K * 2);
                    _tile_loadd(5, rows + (size_t)16 * K + k, K * 2);
                    _tile_loadd(6, left + k * 8, 64);
                    _tile_loadd(7, right + k * 8, 64);
                    MUL4();
                }
                if (cf) {
                    STORE4(cf + (size_t)m * N + n, N * 4);
                } else {
                    STORE4(block, 128);
                    for (int r = 0; r < 32; r++)
                        for (int h = 0; h < 32; h += 16)
                            st16(cb + (size_t)(m + r) * N + n + h, _mm512_load_ps(block + r * 32 + h));
                }
            }
        _tile_release();
    }
    free(packed);
}
