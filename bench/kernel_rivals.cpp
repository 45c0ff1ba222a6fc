// Kernels beside those of other libraries. A ratio is meant for one core and the same rows: libraries that have threads get one,
// and what they want in another form (queries in the rows' type, codes of their own) is prepared outside the clock.
// SPDX-License-Identifier: MIT
#include "kernel_rivals.hpp"

#include <kvtl/simd/assign.hpp>
#include <kvtl/simd/distance.hpp>

#include "kernel_data.hpp"

#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>

#ifdef KVTL_RIVAL_OPENBLAS
#include <cblas.h>
#endif
#ifdef KVTL_RIVAL_HNSWLIB
#include <hnswlib/hnswlib.h>
#endif
#ifdef KVTL_RIVAL_FAISS
#include <faiss/IndexFlat.h>
#include <faiss/utils/distances.h>
#include <omp.h>
#endif
#ifdef KVTL_RIVAL_SIMSIMD
#include <simsimd/simsimd.h>
#endif
#ifdef KVTL_RIVAL_GGML
#include "rival_ggml.hpp"
#endif
#ifdef KVTL_RIVAL_IK
#include "rival_ik.hpp"
#endif

namespace kernels {
namespace {

struct contender {
    const char* who;
    std::function<void()> run;
    std::function<std::vector<float>()> result;
};

class table {
  public:
    table(const rivals_options& options, const std::regex& filter) : options_(&options), filter_(filter) {
        std::printf("%-22s %-18s %10s %10s %7s\n", "kernel", "rival", "ours, us", "theirs, us", "ratio");
    }
    [[nodiscard]] bool wants(const std::string& name) const { return std::regex_search(name, filter_); }
    [[nodiscard]] std::size_t rows() const { return rows_; }

    /// Both in turn; `apart` is by how much the results differ, `allowed` at most.
    template <class Ours, class Theirs, class Apart>
    void pair(const std::string& name, const char* rival, Ours&& ours, Theirs&& theirs, Apart&& apart,
              double allowed) {
        const double first = seconds(ours);
        theirs();
        if (const double by = apart(); !(by <= allowed)) {
            std::printf("%-22s %-18s other results, by %g\n", name.c_str(), rival, by);
            ++wrong_;
            return;
        }
        const auto repeats = static_cast<std::size_t>(std::max(1.0, 4e-3 / std::max(first, 1e-7)));
        double a = std::numeric_limits<double>::infinity(), b = a;
        for (std::size_t r = 0; r < options_->rounds; ++r) {
            a = std::min(a, seconds([&] {
                             for (std::size_t i = 0; i < repeats; ++i) ours();
                         }));
            b = std::min(b, seconds([&] {
                             for (std::size_t i = 0; i < repeats; ++i) theirs();
                         }));
        }
        const double each = 1e6 / static_cast<double>(repeats);
        std::printf("%-22s %-18s %10.2f %10.2f %7.2f\n", name.c_str(), rival, a * each, b * each, b / a);
        std::fflush(stdout);
        ++rows_;
    }

    /// All in turn, the first of them ours: the fastest round of each, and the farthest from `exact` that a number is.
    void in_turn(const std::string& name, const std::vector<contender>& all,
                 const std::vector<double>& exact) {
        std::vector<double> fastest(all.size(), std::numeric_limits<double>::infinity()), error(all.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i].run();
            const std::vector<float> result = all[i].result();
            for (std::size_t j = 0; j < exact.size(); ++j)
                error[i] = std::max(error[i], std::fabs(static_cast<double>(result[j]) - exact[j]));
            // Others round queries and weights, and ggml adds up f16 values in f16: over long contexts that is much.
            if (!(error[i] < (i == 0 ? 1e-4 : .5))) {
                std::printf("%-22s %-18s other results, by %g\n", name.c_str(), all[i].who, error[i]);
                ++wrong_;
                return;
            }
        }
        // Short rounds, and many: some are not disturbed by others, even on a machine that is shared.
        constexpr std::size_t parts = 16;
        const double one = std::max(seconds(all[0].run), 1e-7), part = 4e-3 / parts;
        const auto repeats = static_cast<std::size_t>(std::max(1.0, part / one));
        const std::size_t rounds = options_->rounds * (one > part ? 1 : parts);
        for (std::size_t r = 0; r < rounds; ++r)
            for (std::size_t i = 0; i < all.size(); ++i)
                fastest[i] = std::min(fastest[i], seconds([&] {
                                          for (std::size_t n = 0; n < repeats; ++n) all[i].run();
                                      }));
        for (std::size_t i = 0; i < all.size(); ++i) {
            const double us = 1e6 * fastest[i] / static_cast<double>(repeats);
            std::printf("%-22s %-18s %10.2f %10s %7.2f  error %.1e\n", name.c_str(), all[i].who, us, "",
                        fastest[i] / fastest[0], error[i]);
            char row[256];
            std::snprintf(row, sizeof row,
                          " {\"kernel\": \"%s\", \"of\": \"%s\", \"us\": %.3f, \"error\": %.2e}",
                          name.c_str(), all[i].who, us, error[i]);
            json_ += (json_.empty() ? "" : ",\n") + std::string(row);
        }
        std::fflush(stdout);
        ++rows_;
    }
    /// The rows of in_turn as JSON.
    [[nodiscard]] std::string json() const { return "[\n" + json_ + "\n]\n"; }
    [[nodiscard]] int status() const { return wrong_ == 0 ? 0 : 1; }

  private:
    const rivals_options* options_;
    std::regex filter_;
    std::size_t rows_ = 0, wrong_ = 0;
    std::string json_;
};

double farthest(const std::vector<float>& x, const std::vector<float>& y) {
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
        worst = std::max(worst, std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    return worst;
}

[[maybe_unused]] int as_int(std::size_t n) {
    return static_cast<int>(n);
}

#ifdef KVTL_RIVAL_SIMSIMD
/// Their products and distances have both sides in one type.
template <element E> struct simsimd_of;
template <> struct simsimd_of<float> {
    using type = simsimd_f32_t;
    static constexpr auto dot = simsimd_dot_f32, l2sq = simsimd_l2sq_f32;
};
template <> struct simsimd_of<f16> {
    using type = simsimd_f16_t;
    static constexpr auto dot = simsimd_dot_f16, l2sq = simsimd_l2sq_f16;
};
template <> struct simsimd_of<bf16> {
    using type = simsimd_bf16_t;
    static constexpr auto dot = simsimd_dot_bf16, l2sq = simsimd_l2sq_bf16;
};

template <element E, class Function>
void simsimd_rows(Function function, const E* q, rows_view<E> rows, float* out) {
    using type = typename simsimd_of<E>::type;
    for (std::size_t i = 0; i < rows.count; ++i) {
        simsimd_distance_t d = 0;
        function(reinterpret_cast<const type*>(q), reinterpret_cast<const type*>(rows.row(i)), rows.dim, &d);
        out[i] = static_cast<float>(d);
    }
}
#endif

/// One query, and four, over rows.
template <element E> void products(table& out, rows_view<E> rows, const std::string& place) {
    const std::size_t dim = rows.dim, n = rows.count;
    auto q = oracle::normal_values(4 * dim, 2);
    std::vector<E> narrow(dim);
    for (std::size_t i = 0; i < dim; ++i) // so that both sides multiply the same numbers
        narrow[i] = from_float<E>(q[i]), q[i] = to_float(narrow[i]);
    std::vector<float> ours(n), theirs(n), of_four(4 * n), theirs_of_four(4 * n);
    // Of use where there is something to compare with.
    [[maybe_unused]] const auto apart = [&] { return farthest(ours, theirs); };
    [[maybe_unused]] const double allowed = 1e-2;
    [[maybe_unused]] const auto dot = [&] { simd::dot_rows(q.data(), rows, ours.data()); };
    [[maybe_unused]] const auto l2sq = [&] { simd::l2sq_rows(q.data(), rows, ours.data()); };
    if (const auto name = named<E>("dot", dim, place); out.wants(name)) {
#ifdef KVTL_RIVAL_SIMSIMD
        out.pair(
            name, "simsimd", dot,
            [&] { simsimd_rows<E>(simsimd_of<E>::dot, narrow.data(), rows, theirs.data()); }, apart, allowed);
#endif
        if constexpr (std::is_same_v<E, float>) {
#ifdef KVTL_RIVAL_OPENBLAS
            out.pair(
                name, "OpenBLAS sgemv", dot,
                [&] {
                    cblas_sgemv(CblasRowMajor, CblasNoTrans, as_int(n), as_int(dim), 1, rows.row(0),
                                as_int(dim), q.data(), 1, 0, theirs.data(), 1);
                },
                apart, allowed);
#endif
#ifdef KVTL_RIVAL_FAISS
            out.pair(
                name, "faiss", dot,
                [&] { faiss::fvec_inner_products_ny(theirs.data(), q.data(), rows.row(0), dim, n); }, apart,
                allowed);
#endif
#ifdef KVTL_RIVAL_HNSWLIB
            hnswlib::InnerProductSpace space(dim);
            const auto distance = space.get_dist_func();
            out.pair(
                name, "hnswlib", dot,
                [&] {
                    for (std::size_t i = 0; i < n; ++i)
                        theirs[i] = 1 - distance(q.data(), rows.row(i), space.get_dist_func_param());
                },
                apart, allowed);
#endif
        }
    }
    if (const auto name = named<E>("dot", dim, "/g=4" + place); out.wants(name)) {
        if constexpr (std::is_same_v<E, float>) {
#ifdef KVTL_RIVAL_OPENBLAS
            out.pair(
                name, "OpenBLAS sgemm", [&] { simd::dot_group(q.data(), 4, dim, rows, of_four.data(), n); },
                [&] {
                    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 4, as_int(n), as_int(dim), 1,
                                q.data(), as_int(dim), rows.row(0), as_int(dim), 0, theirs_of_four.data(),
                                as_int(n));
                },
                [&] { return farthest(of_four, theirs_of_four); }, allowed);
#endif
        }
    }
    if (const auto name = named<E>("l2sq", dim, place); out.wants(name)) {
#ifdef KVTL_RIVAL_SIMSIMD
        out.pair(
            name, "simsimd", l2sq,
            [&] { simsimd_rows<E>(simsimd_of<E>::l2sq, narrow.data(), rows, theirs.data()); }, apart,
            std::is_same_v<E, float> ? allowed : 4.0); // theirs may round the differences
#endif
        if constexpr (std::is_same_v<E, float>) {
#ifdef KVTL_RIVAL_FAISS
            out.pair(
                name, "faiss", l2sq,
                [&] { faiss::fvec_L2sqr_ny(theirs.data(), q.data(), rows.row(0), dim, n); }, apart, allowed);
#endif
#ifdef KVTL_RIVAL_HNSWLIB
            hnswlib::L2Space space(dim);
            const auto distance = space.get_dist_func();
            out.pair(
                name, "hnswlib", l2sq,
                [&] {
                    for (std::size_t i = 0; i < n; ++i)
                        theirs[i] = distance(q.data(), rows.row(i), space.get_dist_func_param());
                },
                apart, allowed);
#endif
        }
    }
}

/// Attention in double precision, of the numbers that the rows stand for.
template <number E>
std::vector<double> exact_attention(const float* q, std::size_t group, rows_view<E> keys,
                                    rows_view<E> values) {
    const std::size_t dim = keys.dim;
    const double unit = element<E> ? 1 : 1.0 / 30;
    std::vector<double> out(group * dim), logit(keys.count);
    for (std::size_t g = 0; g < group; ++g) {
        for (std::size_t i = 0; i < keys.count; ++i)
            logit[i] =
                oracle::dot(q + g * dim, keys.row(i), dim) * unit / std::sqrt(static_cast<double>(dim));
        const double top = *std::max_element(logit.begin(), logit.end());
        double sum = 0;
        double* const to = out.data() + g * dim;
        for (std::size_t i = 0; i < keys.count; ++i) {
            const double weight = std::exp(logit[i] - top);
            sum += weight;
            for (std::size_t d = 0; d < dim; ++d) to[d] += weight * unit * oracle::value(values.row(i)[d]);
        }
        for (std::size_t d = 0; d < dim; ++d) to[d] /= sum;
    }
    return out;
}

/// Attention of groups of queries, all libraries in turn: their codes are q8_0, a scale per 32 numbers, ours bytes with a
/// scale per row.
template <number E>
void attended(table& out, const rows_memory<E>& memory, std::size_t dim, const std::string& place) {
    const auto keys = memory.rows(dim, 0, 2), values = memory.rows(dim, 1, 2);
    for (const std::size_t group : {std::size_t{4}, std::size_t{8}}) {
        const auto name = named<E>("attend", dim, "/g=" + std::to_string(group) + place);
        if (!out.wants(name)) continue;
        attention<E> exact(group, dim);
        std::vector<contender> all{
            {"kvtl", [&] { exact.over(keys, values); }, [&] { return exact.result(); }}};
        attention<E> relaxed(group, dim, true);
        if constexpr (simd::has_relaxed_products<arch, E>)
            all.push_back(
                {"kvtl, relaxed", [&] { relaxed.over(keys, values); }, [&] { return relaxed.result(); }});
        // Rows as those have them who have other codes.
        [[maybe_unused]] std::vector<float> wide_k, wide_v;
        if constexpr (!element<E>)
            for (std::size_t i = 0; i < keys.count * dim; ++i) {
                wide_k.push_back(static_cast<float>(keys.row(0)[i]) / 30);
                wide_v.push_back(static_cast<float>(values.row(0)[i]) / 30);
            }
        [[maybe_unused]] const void* const k =
            element<E> ? static_cast<const void*>(keys.row(0)) : wide_k.data();
        [[maybe_unused]] const void* const v =
            element<E> ? static_cast<const void*>(values.row(0)) : wide_v.data();
#ifdef KVTL_RIVAL_GGML
        constexpr auto ggml_type = std::is_same_v<E, float>  ? ggml_attention::rows::f32
                                   : std::is_same_v<E, f16>  ? ggml_attention::rows::f16
                                   : std::is_same_v<E, bf16> ? ggml_attention::rows::bf16
                                                             : ggml_attention::rows::q8;
        ggml_attention ggml(ggml_type, dim, group, keys.count, exact.queries(), k, v);
        if (ggml.valid())
            all.push_back({"ggml", [&] { ggml.run(); },
                           [&] {
                               std::vector<float> result(group * dim);
                               ggml.result(result.data());
                               return result;
                           }});
#endif
#ifdef KVTL_RIVAL_IK
        if constexpr (!std::is_same_v<E, float>) {
            constexpr auto ik_type = std::is_same_v<E, f16>    ? ik_attention::rows::f16
                                     : std::is_same_v<E, bf16> ? ik_attention::rows::bf16
                                                               : ik_attention::rows::q8;
            const auto ik =
                std::make_shared<ik_attention>(ik_type, dim, group, keys.count, exact.queries(), k, v);
            if (ik->valid())
                all.push_back({"ik_llama.cpp", [ik] { ik->run(); }, [ik] { return ik->result(); }});
        }
#endif
        out.in_turn(name, all, exact_attention<E>(exact.queries(), group, keys, values));
    }
}

/// Attention of groups of queries over 4-bit rows with a step per 32 numbers, as many of them as `bytes` bytes of f16 rows are;
/// those take turns with them.
void attended_nibbles(table& out, std::size_t bytes, std::size_t dim, const std::string& place) {
    using rows_type = simd::packed_rows<4, false>;
    for (const std::size_t group : {std::size_t{4}, std::size_t{8}}) {
        const std::string name = "attend/int4/" + std::to_string(dim) + "/g=" + std::to_string(group) + place;
        if (!out.wants(name)) continue;
        rows_memory<f16> wide(bytes);
        const auto wide_k = wide.rows(dim, 0, 2), wide_v = wide.rows(dim, 1, 2);
        rows_type keys{nullptr, wide_k.count, dim, 0};
        keys.stride = (keys.row_bytes() + 3) / 4 * 4; // as int4_group has them
        rows_memory<std::int8_t> memory(2 * keys.count * keys.stride);
        keys.data = memory.bytes();
        rows_type values = keys;
        values.data += keys.count * keys.stride;
        // f16 rows of the same numbers, rounded.
        std::vector<float> k(keys.count * dim), v(keys.count * dim);
        const auto pack = [&](rows_view<f16> from, const rows_type& to, float* numbers) {
            for (std::size_t i = 0; i < to.count; ++i) {
                std::byte* const row = memory.bytes() + (to.row(i) - memory.bytes());
                simd::pack_row(from.row(i), to, row);
                simd::unpack_row(to, i, numbers + i * dim);
                auto* const rounded = reinterpret_cast<f16*>(wide.bytes()) + (from.row(i) - wide_k.row(0));
                simd::encode(numbers + i * dim, rounded, dim);
            }
        };
        pack(wide_k, keys, k.data());
        pack(wide_v, values, v.data());
        attention<f16> of_16_bits(group, dim);
        packed_attention nibbles(group, dim);
        std::vector<contender> all{
            {"kvtl", [&] { nibbles.over(keys, values); }, [&] { return nibbles.result(); }},
            {"kvtl, f16 rows", [&] { of_16_bits.over(wide_k, wide_v); },
             [&] { return of_16_bits.result(); }}};
        out.in_turn(name, all,
                    exact_attention<float>(nibbles.queries(), group, {k.data(), keys.count, dim, dim},
                                           {v.data(), keys.count, dim, dim}));
    }
}

/// Points to 256 centroids.
[[maybe_unused]] void assigned(table& out, rows_view<float> points) {
    const auto name = named<float>("assign", points.dim, "");
    if (!out.wants(name)) return;
    constexpr std::size_t count = 256;
    const std::size_t dim = points.dim, n = points.count;
    const auto centroids = oracle::normal_values(count * dim, 4);
    std::vector<float> half(count), distance(n);
    for (std::size_t c = 0; c < count; ++c)
        half[c] = 0.5F * simd::dot(&centroids[c * dim], &centroids[c * dim], dim);
    std::vector<std::uint32_t> label(n);
    const auto ours = [&] {
        simd::kmeans_assign(points, centroids.data(), count, half.data(), label.data(), distance.data());
    };
#ifdef KVTL_RIVAL_FAISS
    faiss::IndexFlatL2 index(static_cast<faiss::Index::idx_t>(dim));
    index.add(count, centroids.data());
    std::vector<faiss::Index::idx_t> theirs(n);
    out.pair(
        name, "faiss IndexFlatL2", ours,
        [&] { index.assign(static_cast<faiss::Index::idx_t>(n), points.row(0), theirs.data()); },
        [&] {
            std::size_t other = 0;
            for (std::size_t i = 0; i < n; ++i) other += static_cast<std::size_t>(theirs[i]) != label[i];
            return static_cast<double>(other) / static_cast<double>(n);
        },
        .01); // near ties
#endif
#ifdef KVTL_RIVAL_OPENBLAS
    std::vector<float> product(n * count); // which of them is largest is left to the caller
    out.pair(
        name, "OpenBLAS sgemm", ours,
        [&] {
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_int(n), as_int(count), as_int(dim), 1,
                        points.row(0), as_int(dim), centroids.data(), as_int(dim), 0, product.data(),
                        as_int(count));
        },
        [] { return 0.0; }, 0);
#endif
    static_cast<void>(ours);
}

template <number E> void all_of(table& out, const rivals_options& options) {
    for (const auto& [place, bytes] :
         {std::pair<std::string, std::size_t>{"/L2", std::size_t{256} << 10}, {"/mem", options.mib << 20}}) {
        bool any = false;
        for (const std::size_t dim : head_sizes)
            for (const char* kernel : {"dot", "l2sq", "attend", "assign"})
                for (const char* group : {"", "/g=4", "/g=8"})
                    any |= out.wants(named<E>(kernel, dim, group + place));
        if (!any) continue;
        const rows_memory<E> memory(bytes);
        for (const std::size_t dim : {std::size_t{64}, std::size_t{128}}) {
            if constexpr (element<E>) products<E>(out, memory.rows(dim), place);
            attended<E>(out, memory, dim, place);
            if constexpr (std::is_same_v<E, float>)
                if (place == "/L2") assigned(out, memory.rows(dim));
        }
    }
}

} // namespace

int print_rivals(const rivals_options& options) {
    std::regex filter;
    if (!compile(options.filter, filter)) {
        std::fprintf(stderr, "kvtl-kernels: --rivals=%s is no regular expression\n", options.filter.c_str());
        return 2;
    }
    std::string missing;
#ifdef KVTL_RIVAL_OPENBLAS
    openblas_set_num_threads(1);
#else
    missing += " OpenBLAS";
#endif
#ifdef KVTL_RIVAL_FAISS
    omp_set_num_threads(1);
#else
    missing += " faiss";
#endif
#ifndef KVTL_RIVAL_HNSWLIB
    missing += " hnswlib";
#endif
#ifndef KVTL_RIVAL_SIMSIMD
    missing += " simsimd";
#endif
#ifndef KVTL_RIVAL_GGML
    missing += " ggml";
#endif
#ifndef KVTL_RIVAL_IK
    missing += " ik_llama.cpp";
#endif
    if (!missing.empty()) std::printf("not there when this was built:%s\n", missing.c_str());
    table out(options, filter);
    all_of<float>(out, options);
    all_of<f16>(out, options);
    all_of<bf16>(out, options);
    all_of<std::int8_t>(out, options);
    for (const std::size_t dim : {std::size_t{64}, std::size_t{128}}) {
        attended_nibbles(out, std::size_t{256} << 10, dim, "/L2");
        attended_nibbles(out, options.mib << 20, dim, "/mem");
    }
    if (out.rows() == 0) {
        std::fprintf(stderr, "kvtl-kernels: --rivals=%s matches nothing that has a rival here\n",
                     options.filter.c_str());
        return 2;
    }
    if (!options.file.empty() && !(std::ofstream(options.file) << out.json())) {
        std::fprintf(stderr, "kvtl-kernels: --json: cannot write %s\n", options.file.c_str());
        return 2;
    }
    return out.status();
}

} // namespace kernels
