// Kernels beside those of other libraries, on the same rows. Libraries that have threads get one each, and what they want in
// another form (queries in the rows' type, codes of their own) is prepared outside the clock.
// SPDX-License-Identifier: MIT
#include "kernel_rivals.hpp"

#include <kvtl/simd/assign.hpp>
#include <kvtl/simd/distance.hpp>

#include "kernel_data.hpp"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

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
    std::vector<std::function<void()>>
        run;                       ///< one for each thread, with rows, queries and results of its own
    std::function<double()> error; ///< the largest, against double precision; empty: a limit of the machine
    double allowed;                ///< of that
};

/// The larger of two errors; one that is no number is as large as can be.
double larger(double worst, double error) {
    return error <= worst ? worst : std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}
/// The largest distance of a number from the exact one.
double farthest(const std::vector<float>& result, const std::vector<double>& exact) {
    double worst = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
        worst = larger(worst, std::fabs(static_cast<double>(result[i]) - exact[i]));
    return worst;
}

/// The longest that a thread takes once all of them are there, each with so many calls after one that warms its caches where
/// there are several.
double seconds_of(const contender& c, std::size_t repeats) {
    std::atomic<std::size_t> there{0};
    std::vector<double> took(c.run.size());
    on_threads(c.run.size(), [&](std::size_t i, std::size_t n) {
        if (repeats > 1) c.run[i]();
        ++there;
        while (there < n) std::this_thread::yield();
        took[i] = seconds([&] {
            for (std::size_t r = 0; r < repeats; ++r) c.run[i]();
        });
    });
    return *std::max_element(took.begin(), took.end());
}

class table {
  public:
    table(const rivals_options& options, const std::regex& filter) : options_(&options), filter_(filter) {
        std::printf("%-28s %-18s %10s %10s %7s  %s\n", "kernel", "of", "best, us", "median, us", "ratio",
                    "error");
    }
    [[nodiscard]] bool wants(const std::string& name) const { return std::regex_search(name, filter_); }
    /// Kernels that were to have rows.
    [[nodiscard]] std::size_t asked() const { return asked_; }
    [[nodiscard]] std::size_t threads() const { return options_->threads; }
    /// Of rows that no cache holds.
    [[nodiscard]] std::size_t memory_bytes() const { return options_->mib << 20; }
    /// "/t=2" for two threads.
    [[nodiscard]] std::string suffix() const {
        return threads() > 1 ? "/t=" + std::to_string(threads()) : "";
    }

    /// All in turn, the first of them ours: the fastest and the median round of each, theirs / ours, and how far each is from
    /// double precision. One that is farther than allowed has no row, and status() says so; without ours there are none.
    void in_turn(const std::string& name, std::vector<contender> all) {
        ++asked_;
        std::vector<double> error(all.size());
        for (std::size_t i = all.size(); i-- > 0;) {
            on_threads(all[i].run.size(), [&](std::size_t thread, std::size_t) { all[i].run[thread](); });
            if (!all[i].error || (error[i] = all[i].error()) <= all[i].allowed) continue;
            std::printf("%-28s %-18s other results, by %g\n", name.c_str(), all[i].who, error[i]);
            ++wrong_;
            if (i == 0) return;
            all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
            error.erase(error.begin() + static_cast<std::ptrdiff_t>(i));
        }
        // Short rounds, and many: some are not disturbed by others, even on a machine that is shared.
        constexpr std::size_t parts = 16;
        const double one = std::max(seconds_of(all[0], 1), 1e-7), part = 4e-3 / parts;
        const auto repeats = static_cast<std::size_t>(std::max(1.0, part / one));
        const std::size_t rounds = options_->rounds * (one > part ? 1 : parts);
        std::vector<std::vector<double>> us(all.size());
        for (std::size_t r = 0; r < rounds; ++r)
            for (std::size_t i = 0; i < all.size(); ++i)
                us[i].push_back(1e6 * seconds_of(all[i], repeats) / static_cast<double>(repeats));
        for (auto& some : us) std::sort(some.begin(), some.end());
        for (std::size_t i = 0; i < all.size(); ++i) {
            const double best = us[i].front(), median = us[i][rounds / 2];
            char wrong_by[16] = "null";
            if (all[i].error) std::snprintf(wrong_by, sizeof wrong_by, "%.2e", error[i]);
            std::printf("%-28s %-18s %10.2f %10.2f %7.2f  %s\n", name.c_str(), all[i].who, best, median,
                        best / us[0].front(), all[i].error ? wrong_by : "-");
            char row[256];
            std::snprintf(
                row, sizeof row,
                " {\"kernel\": \"%s\", \"of\": \"%s\", \"us\": %.3f, \"us_median\": %.3f, \"error\": %s}",
                name.c_str(), all[i].who, best, median, wrong_by);
            json_ += (json_.empty() ? "" : ",\n") + std::string(row);
        }
        std::fflush(stdout);
    }
    /// All rows as JSON.
    [[nodiscard]] std::string json() const { return "[\n" + json_ + "\n]\n"; }
    [[nodiscard]] int status() const { return wrong_ == 0 ? 0 : 1; }

  private:
    const rivals_options* options_;
    std::regex filter_;
    std::size_t asked_ = 0, wrong_ = 0;
    std::string json_;
};

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

constexpr std::size_t cached_bytes = std::size_t{256} << 10; ///< of rows in the L2 cache

/// One query, and four, over rows. Errors are those of products of numbers of about 1.
template <element E> void products(table& out, std::size_t dim, std::size_t bytes, const std::string& place) {
    const std::string dot = named<E>("dot", dim, place), dots = named<E>("dot", dim, "/g=4" + place),
                      l2sq = named<E>("l2sq", dim, place);
    if (!out.wants(dot) && !out.wants(dots) && !out.wants(l2sq)) return;
    const rows_memory<E> memory(bytes);
    const rows_view<E> rows = memory.rows(dim);
    const std::size_t n = rows.count;
    auto q = oracle::normal_values(4 * dim, 2);
    std::vector<E> narrow(dim);
    for (std::size_t i = 0; i < dim; ++i) // so that both sides multiply the same numbers
        narrow[i] = from_float<E>(q[i]), q[i] = to_float(narrow[i]);
    std::vector<float> result(4 * n); // of whoever ran last
    std::vector<double> exact;
    std::vector<contender> all;
    const auto add = [&](const char* who, std::function<void()> run, double allowed) {
        all.push_back({who, {std::move(run)}, [&] { return farthest(result, exact); }, allowed});
    };
    [[maybe_unused]] constexpr double of_others = 1e-2; // sums of up to a thousand, as floats
    constexpr double ours = 1e-3;
    if (out.wants(dot)) {
        for (std::size_t i = 0; i < n; ++i) exact.push_back(oracle::dot(q.data(), rows.row(i), dim));
        add(
            "kvtl", [&] { simd::dot_rows(q.data(), rows, result.data()); }, ours);
#ifdef KVTL_RIVAL_SIMSIMD
        add(
            "simsimd", [&] { simsimd_rows<E>(simsimd_of<E>::dot, narrow.data(), rows, result.data()); },
            of_others);
#endif
        if constexpr (std::is_same_v<E, float>) {
#ifdef KVTL_RIVAL_OPENBLAS
            add(
                "OpenBLAS sgemv",
                [&] {
                    cblas_sgemv(CblasRowMajor, CblasNoTrans, as_int(n), as_int(dim), 1, rows.row(0),
                                as_int(dim), q.data(), 1, 0, result.data(), 1);
                },
                of_others);
#endif
#ifdef KVTL_RIVAL_FAISS
            add(
                "faiss", [&] { faiss::fvec_inner_products_ny(result.data(), q.data(), rows.row(0), dim, n); },
                of_others);
#endif
#ifdef KVTL_RIVAL_HNSWLIB
            const auto space = std::make_shared<hnswlib::InnerProductSpace>(dim);
            add(
                "hnswlib",
                [&, space] {
                    const auto distance = space->get_dist_func();
                    for (std::size_t i = 0; i < n; ++i)
                        result[i] = 1 - distance(q.data(), rows.row(i), space->get_dist_func_param());
                },
                of_others);
#endif
        }
        out.in_turn(dot, std::exchange(all, {}));
    }
    if (out.wants(dots)) {
        exact.clear();
        for (std::size_t g = 0; g < 4; ++g)
            for (std::size_t i = 0; i < n; ++i)
                exact.push_back(oracle::dot(q.data() + g * dim, rows.row(i), dim));
        add(
            "kvtl", [&] { simd::dot_group(q.data(), 4, dim, rows, result.data(), n); }, ours);
#ifdef KVTL_RIVAL_OPENBLAS
        if constexpr (std::is_same_v<E, float>)
            add(
                "OpenBLAS sgemm",
                [&] {
                    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 4, as_int(n), as_int(dim), 1,
                                q.data(), as_int(dim), rows.row(0), as_int(dim), 0, result.data(), as_int(n));
                },
                of_others);
#endif
        out.in_turn(dots, std::exchange(all, {}));
    }
    if (out.wants(l2sq)) {
        exact.clear();
        for (std::size_t i = 0; i < n; ++i) exact.push_back(oracle::l2sq(q.data(), rows.row(i), dim));
        add(
            "kvtl", [&] { simd::l2sq_rows(q.data(), rows, result.data()); }, ours);
#ifdef KVTL_RIVAL_SIMSIMD
        // It rounds differences of 16-bit numbers to 16 bits, each by up to a 256th.
        add(
            "simsimd", [&] { simsimd_rows<E>(simsimd_of<E>::l2sq, narrow.data(), rows, result.data()); },
            std::is_same_v<E, float> ? of_others : 4.0);
#endif
        if constexpr (std::is_same_v<E, float>) {
#ifdef KVTL_RIVAL_FAISS
            add(
                "faiss", [&] { faiss::fvec_L2sqr_ny(result.data(), q.data(), rows.row(0), dim, n); },
                of_others);
#endif
#ifdef KVTL_RIVAL_HNSWLIB
            const auto space = std::make_shared<hnswlib::L2Space>(dim);
            add(
                "hnswlib",
                [&, space] {
                    const auto distance = space->get_dist_func();
                    for (std::size_t i = 0; i < n; ++i)
                        result[i] = distance(q.data(), rows.row(i), space->get_dist_func_param());
                },
                of_others);
#endif
        }
        out.in_turn(l2sq, std::exchange(all, {}));
    }
}

/// Attention in double precision, of the numbers that the rows stand for.
template <number E>
std::vector<double> exact_attention(const float* q, std::size_t group, rows_view<E> keys,
                                    rows_view<E> values) {
    const std::size_t dim = keys.dim;
    const double unit = element<E> ? 1 : 1.0 / 30;
    // Each row is converted once; four sums, since each waits for its additions.
    std::vector<double> out(group * dim), logit(group * keys.count), row(dim);
    const auto load = [&](const E* from) {
        for (std::size_t d = 0; d < dim; ++d) row[d] = unit * oracle::value(from[d]);
    };
    for (std::size_t i = 0; i < keys.count; ++i) {
        load(keys.row(i));
        for (std::size_t g = 0; g < group; ++g) {
            double sum[4] = {};
            for (std::size_t d = 0; d < dim; d += 4)
                for (std::size_t j = 0; j < 4; ++j) sum[j] += row[d + j] * oracle::value(q[g * dim + d + j]);
            logit[g * keys.count + i] =
                (sum[0] + sum[1] + sum[2] + sum[3]) / std::sqrt(static_cast<double>(dim));
        }
    }
    std::vector<double> total(group);
    for (std::size_t g = 0; g < group; ++g) {
        double* const own = &logit[g * keys.count];
        const double top = *std::max_element(own, own + keys.count);
        for (std::size_t i = 0; i < keys.count; ++i) total[g] += own[i] = std::exp(own[i] - top);
    }
    for (std::size_t i = 0; i < keys.count; ++i) {
        load(values.row(i));
        for (std::size_t g = 0; g < group; ++g)
            for (std::size_t d = 0; d < dim; ++d) out[g * dim + d] += logit[g * keys.count + i] * row[d];
    }
    for (std::size_t j = 0; j < out.size(); ++j) out[j] /= total[j / dim];
    return out;
}

/// A contender of attention from its parts, one a thread: they have run() and result(), and the same numbers in memory of
/// their own, so that one exact result is that of all.
template <class Side>
void add(std::vector<contender>& to, const char* who, const std::vector<double>& exact, double allowed,
         const std::vector<std::shared_ptr<Side>>& sides) {
    contender c{who, {}, {}, allowed};
    for (const auto& side : sides) c.run.emplace_back([side] { side->run(); });
    c.error = [sides, &exact] {
        double worst = 0;
        for (const auto& side : sides) worst = larger(worst, farthest(side->result(), exact));
        return worst;
    };
    to.push_back(std::move(c));
}

/// Those of all threads had their memory.
[[maybe_unused]] bool all_valid(const auto& sides) {
    return std::all_of(sides.begin(), sides.end(), [](const auto& side) { return side->valid(); });
}
/// make(i) for each thread.
template <class Make> auto of_threads(std::size_t threads, const Make& make) {
    std::vector<decltype(make(threads))> all;
    for (std::size_t i = 0; i < threads; ++i) all.push_back(make(i));
    return all;
}

/// One of ours over its rows.
template <class Attention, class Rows> class side {
  public:
    side(const Attention& attention, const Rows& keys, const Rows& values)
        : attention_(attention), keys_(keys), values_(values) {}
    void run() { attention_.over(keys_, values_); }
    [[nodiscard]] const std::vector<float>& result() const { return attention_.result(); }
    [[nodiscard]] const float* queries() const { return attention_.queries(); }

  private:
    Attention attention_;
    Rows keys_, values_;
};

constexpr std::size_t groups[] = {1, 4, 8};

/// What a name of attention ends with, and for how many bytes of keys and values it stands, of rows of `row` bytes: a part
/// of the L2 cache, tokens, or what no cache holds.
std::vector<std::pair<std::string, std::size_t>> places(const table& out, std::size_t row) {
    return {{"/L2" + out.suffix(), cached_bytes},
            {"/1K" + out.suffix(), (std::size_t{2} << 10) * row},
            {"/4K" + out.suffix(), (std::size_t{8} << 10) * row},
            {"/32K" + out.suffix(), (std::size_t{64} << 10) * row},
            {"/mem" + out.suffix(), out.memory_bytes()}};
}

/// The groups that are asked for.
template <class Name> std::vector<std::size_t> wanted(const table& out, const Name& name) {
    std::vector<std::size_t> some;
    for (const std::size_t group : groups)
        if (out.wants(name(group))) some.push_back(group);
    return some;
}

// Allowed errors of attention. Sums in floats lose digits as they grow:
double of_floats(std::size_t tokens) {
    return 1e-4 * std::max(1.0, static_cast<double>(tokens) / 65536);
}
// Queries are rounded to 8 bits or to bf16, and codes of others are not ours:
[[maybe_unused]] constexpr double of_rounded = 2e-2;
// ggml adds up f16 values in f16, so that over half a million tokens its sums stop growing:
[[maybe_unused]] constexpr double of_f16_sums = 1;

/// Attention of groups of queries, all libraries in turn: their codes are q8_0, a scale per 32 numbers, ours bytes with a
/// scale per row. Every thread has a KV head of its own, as in an engine. From memory the limits of the machine take turns
/// with them: wide loads of the same bytes, and the multiply-adds of exact products alone.
template <number E> void attended(table& out, std::size_t dim, std::size_t bytes, const std::string& place) {
    const auto name = [&](std::size_t group) {
        return named<E>("attend", dim, "/g=" + std::to_string(group) + place);
    };
    const auto some = wanted(out, name);
    if (some.empty()) return;
    const std::size_t threads = out.threads();
    const auto memory =
        of_threads(threads, [&](std::size_t) { return std::make_shared<rows_memory<E>>(bytes); });
    const auto keys = [&](std::size_t i) { return memory[i]->rows(dim, 0, 2); };
    const auto values = [&](std::size_t i) { return memory[i]->rows(dim, 1, 2); };
    const std::size_t tokens = keys(0).count;
    // Rows as those have them who have other codes.
    [[maybe_unused]] std::vector<float> wide_k(element<E> ? 0 : tokens * dim), wide_v(wide_k);
    if constexpr (!element<E>)
        for (std::size_t i = 0; i < tokens * dim; ++i) {
            wide_k[i] = static_cast<float>(keys(0).row(0)[i]) / 30;
            wide_v[i] = static_cast<float>(values(0).row(0)[i]) / 30;
        }
    [[maybe_unused]] const auto numbers = [](rows_view<E> rows, const std::vector<float>& as_floats) {
        return element<E> ? static_cast<const void*>(rows.row(0)) : as_floats.data();
    };
    for (const std::size_t group : some) {
        using own = side<attention<E>, rows_view<E>>;
        const auto sides = [&](bool relaxed) {
            return of_threads(threads, [&](std::size_t i) {
                return std::make_shared<own>(attention<E>(group, dim, relaxed), keys(i), values(i));
            });
        };
        const auto ours = sides(false);
        const auto exact = exact_attention<E>(ours[0]->queries(), group, keys(0), values(0));
        std::vector<contender> all;
        add(all, "kvtl", exact, of_floats(tokens), ours);
        if constexpr (simd::has_relaxed_products<arch, E>)
            add(all, "kvtl, relaxed", exact, of_rounded, sides(true));
#ifdef KVTL_RIVAL_GGML
        constexpr auto ggml_type = std::is_same_v<E, float>  ? ggml_attention::rows::f32
                                   : std::is_same_v<E, f16>  ? ggml_attention::rows::f16
                                   : std::is_same_v<E, bf16> ? ggml_attention::rows::bf16
                                                             : ggml_attention::rows::q8;
        const auto ggml = of_threads(threads, [&](std::size_t i) {
            return std::make_shared<ggml_attention>(ggml_type, dim, group, tokens, ours[i]->queries(),
                                                    numbers(keys(i), wide_k), numbers(values(i), wide_v));
        });
        if (all_valid(ggml)) add(all, "ggml", exact, std::is_same_v<E, f16> ? of_f16_sums : of_rounded, ggml);
#endif
#ifdef KVTL_RIVAL_IK
        if constexpr (!std::is_same_v<E, float>) {
            constexpr auto ik_type = std::is_same_v<E, f16>    ? ik_attention::rows::f16
                                     : std::is_same_v<E, bf16> ? ik_attention::rows::bf16
                                                               : ik_attention::rows::q8;
            const auto ik = of_threads(threads, [&](std::size_t i) {
                return std::make_shared<ik_attention>(ik_type, dim, group, tokens, ours[i]->queries(),
                                                      numbers(keys(i), wide_k), numbers(values(i), wide_v));
            });
            if (all_valid(ik))
                add(all, "ik_llama.cpp", exact, std::is_same_v<E, f16> ? of_floats(tokens) : of_rounded, ik);
        }
#endif
        if (place.starts_with("/mem")) {
            contender loads{"wide loads", {}, {}, 0}, products{"multiply-adds", {}, {}, 0};
            const double operations = 4.0 * static_cast<double>(tokens * dim * group);
            for (const auto& rows : memory) {
                loads.run.emplace_back([&rows, bytes] { read_all(rows->bytes(), bytes); });
                products.run.emplace_back([operations] { multiply_add(operations); });
            }
            all.push_back(std::move(loads));
            all.push_back(std::move(products));
        }
        out.in_turn(name(group), std::move(all));
    }
}

/// Attention of groups of queries over 4-bit rows with a step per 32 numbers, as many of them as `bytes` bytes of f16 rows are;
/// those take turns with them.
void attended_nibbles(table& out, std::size_t dim, std::size_t bytes, const std::string& place) {
    using rows_type = simd::packed_rows<4, false>;
    const auto name = [&](std::size_t group) {
        return "attend/int4/" + std::to_string(dim) + "/g=" + std::to_string(group) + place;
    };
    const auto some = wanted(out, name);
    if (some.empty()) return;
    struct rows_of_thread {
        rows_memory<f16> wide; ///< the same numbers, rounded
        rows_view<f16> wide_k, wide_v;
        rows_type keys, values;
        rows_memory<std::int8_t> narrow;
        rows_of_thread(std::size_t dim, std::size_t bytes)
            : wide(bytes), wide_k(wide.rows(dim, 0, 2)),
              wide_v(wide.rows(dim, 1, 2)), keys{nullptr, wide_k.count, dim, stride(dim)}, values(keys),
              narrow(2 * keys.count * keys.stride) {
            keys.data = narrow.bytes();
            values.data = narrow.bytes() + keys.count * keys.stride;
        }
        static std::size_t stride(std::size_t dim) { // as int4_group has it
            return (rows_type{nullptr, 0, dim, 0}.row_bytes() + 3) / 4 * 4;
        }
    };
    std::vector<float> k, v; // what the codes stand for
    const auto memory = of_threads(out.threads(), [&](std::size_t) {
        auto rows = std::make_shared<rows_of_thread>(dim, bytes);
        const auto pack = [&](rows_view<f16> from, const rows_type& to, std::vector<float>& numbers) {
            numbers.resize(to.count * dim);
            for (std::size_t i = 0; i < to.count; ++i) {
                std::byte* const row = rows->narrow.bytes() + (to.row(i) - rows->narrow.bytes());
                simd::pack_row(from.row(i), to, row);
                simd::unpack_row(to, i, &numbers[i * dim]);
                auto* const rounded =
                    reinterpret_cast<f16*>(rows->wide.bytes()) + (from.row(i) - rows->wide_k.row(0));
                simd::encode(&numbers[i * dim], rounded, dim);
            }
        };
        pack(rows->wide_k, rows->keys, k);
        pack(rows->wide_v, rows->values, v);
        return rows;
    });
    for (const std::size_t group : some) {
        using of_nibbles = side<packed_attention, rows_type>;
        using of_16_bits = side<attention<f16>, rows_view<f16>>;
        const auto nibbles = of_threads(out.threads(), [&](std::size_t i) {
            return std::make_shared<of_nibbles>(packed_attention(group, dim), memory[i]->keys,
                                                memory[i]->values);
        });
        const auto exact =
            exact_attention<float>(nibbles[0]->queries(), group, {k.data(), k.size() / dim, dim, dim},
                                   {v.data(), v.size() / dim, dim, dim});
        std::vector<contender> all;
        add(all, "kvtl", exact, of_floats(k.size() / dim), nibbles);
        add(all, "kvtl, f16 rows", exact, 1e-3, // they are rounded
            of_threads(out.threads(), [&](std::size_t i) {
                return std::make_shared<of_16_bits>(attention<f16>(group, dim), memory[i]->wide_k,
                                                    memory[i]->wide_v);
            }));
        out.in_turn(name(group), std::move(all));
    }
}

/// Points to 256 centroids. The error is how much farther, squared, the chosen centroid of a point is than its nearest one:
/// labels may differ where two are as near.
void assigned(table& out, std::size_t dim) {
    const auto name = named<float>("assign", dim, "");
    if (!out.wants(name)) return;
    const rows_memory<float> memory(cached_bytes);
    const rows_view<float> points = memory.rows(dim);
    constexpr std::size_t count = 256;
    const std::size_t n = points.count;
    const auto centroids = oracle::normal_values(count * dim, 4);
    const rows_view<float> of_centroids{centroids.data(), count, dim, dim};
    std::vector<float> half(count), distance(n);
    for (std::size_t c = 0; c < count; ++c)
        half[c] = 0.5F * simd::dot(&centroids[c * dim], &centroids[c * dim], dim);
    std::vector<std::uint32_t> label(n);
    const auto excess = [&](const auto& chosen) {
        double worst = 0;
        for (std::size_t i = 0; i < n; ++i)
            worst = larger(worst, oracle::l2sq(points.row(i),
                                               of_centroids.row(static_cast<std::size_t>(chosen[i])), dim) -
                                      oracle::nearest(points.row(i), of_centroids).distance);
        return worst;
    };
    constexpr double allowed = 1e-3; // of distances of about 2 * dim
    std::vector<contender> all;
    all.push_back({"kvtl",
                   {[&] {
                       simd::kmeans_assign(points, centroids.data(), count, half.data(), label.data(),
                                           distance.data());
                   }},
                   [&] { return excess(label); },
                   allowed});
#ifdef KVTL_RIVAL_FAISS
    faiss::IndexFlatL2 index(static_cast<faiss::Index::idx_t>(dim));
    index.add(count, centroids.data());
    std::vector<faiss::Index::idx_t> theirs(n);
    all.push_back({"faiss IndexFlatL2",
                   {[&] { index.assign(static_cast<faiss::Index::idx_t>(n), points.row(0), theirs.data()); }},
                   [&] { return excess(theirs); },
                   allowed});
#endif
#ifdef KVTL_RIVAL_OPENBLAS
    // Which product is largest is left to the caller: the error is that of the products.
    std::vector<float> product(n * count);
    all.push_back({"OpenBLAS sgemm",
                   {[&] {
                       cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, as_int(n), as_int(count),
                                   as_int(dim), 1, points.row(0), as_int(dim), centroids.data(), as_int(dim),
                                   0, product.data(), as_int(count));
                   }},
                   [&] {
                       std::vector<double> exact;
                       for (std::size_t i = 0; i < n; ++i)
                           for (std::size_t c = 0; c < count; ++c)
                               exact.push_back(oracle::dot(points.row(i), of_centroids.row(c), dim));
                       return farthest(product, exact);
                   },
                   1e-2});
#endif
    out.in_turn(name, std::move(all));
}

template <number E> void all_of(table& out) {
    for (const std::size_t dim : {std::size_t{64}, std::size_t{128}}) {
        if (out.threads() == 1) {
            if constexpr (element<E>) {
                products<E>(out, dim, cached_bytes, "/L2");
                products<E>(out, dim, out.memory_bytes(), "/mem");
            }
            if constexpr (std::is_same_v<E, float>) assigned(out, dim);
        }
        for (const auto& [place, bytes] : places(out, dim * sizeof(E))) attended<E>(out, dim, bytes, place);
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
    all_of<float>(out);
    all_of<f16>(out);
    all_of<bf16>(out);
    all_of<std::int8_t>(out);
    for (const std::size_t dim : {std::size_t{64}, std::size_t{128}})
        for (const auto& [place, bytes] : places(out, dim * sizeof(f16)))
            attended_nibbles(out, dim, bytes, place);
    if (out.asked() == 0) {
        std::fprintf(stderr, "kvtl-kernels: --rivals=%s matches none of dot, l2sq, assign and attend%s\n",
                     options.filter.c_str(), options.threads > 1 ? " (--threads: only of attend)" : "");
        return 2;
    }
    if (!options.file.empty() && !(std::ofstream(options.file) << out.json())) {
        std::fprintf(stderr, "kvtl-kernels: --json: cannot write %s\n", options.file.c_str());
        return 2;
    }
    return out.status();
}

} // namespace kernels
