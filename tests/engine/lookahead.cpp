// Trained lookahead modules: what their vectors ask for, by definition in double precision; and files that are none.
// SPDX-License-Identifier: MIT
#include "lookahead.hpp"

#include "fingerprint.hpp"
#include "gguf.hpp"
#include "matmul.hpp"
#include "model.hpp"
#include "support/oracle.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

using namespace engine;

namespace {

struct tiny {
    gguf_file file{std::string(KVTL_SOURCE_DIR) + "/examples/data/tiny-2k.gguf"};
    model weights{file};
    tokenizer words{file};
    thread_pool pool{1};
    std::size_t width = weights.hyper().width;
    std::size_t query_floats =
        std::size_t{weights.hyper().shape.query_heads} * weights.hyper().shape.head_dim;

    [[nodiscard]] std::vector<float> row(const tensor& of, std::size_t i) const {
        std::vector<float> out(of.columns);
        expand(of.type, of.data + i * *bytes_of(of.type, of.columns), 0, of.columns, out.data());
        return out;
    }
};

constexpr std::uint32_t rank = 3;

/// The embeddings of `tokens` as vectors, with additions of this size.
trained_lookahead modules(const tiny& t, const std::vector<token_id>& tokens, double size) {
    trained_lookahead ahead{static_cast<std::uint32_t>(tokens.size()), rank, {}, {}, {}};
    for (const token_id token : tokens) {
        const auto row = t.row(t.weights.embedding(), token);
        ahead.rows.insert(ahead.rows.end(), row.begin(), row.end());
    }
    const std::size_t layers = t.weights.hyper().shape.layers;
    ahead.down = oracle::normal_values(layers * rank * t.width, 5, size);
    ahead.up = oracle::normal_values(layers * t.query_floats * rank, 6, size);
    return ahead;
}

class scratch_file {
  public:
    explicit scratch_file(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
    scratch_file(const scratch_file&) = delete;
    ~scratch_file() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_ =
        (std::filesystem::temp_directory_path() / ("kvtl-lookahead-" + std::to_string(::getpid()))).string();
};

/// The file of modules, as bench/train_gates writes it.
std::string bytes_of_file(const tiny& t, const trained_lookahead& ahead) {
    std::string out = "KVTLLOOK";
    const auto put = [&out](const auto& x) { out.append(reinterpret_cast<const char*>(&x), sizeof x); };
    put(fingerprint_of(t.weights));
    const std::size_t layers = t.weights.hyper().shape.layers;
    for (const std::size_t x : {std::size_t{1}, layers, t.width, t.query_floats, std::size_t{ahead.vectors},
                                std::size_t{ahead.rank}})
        put(static_cast<std::uint32_t>(x));
    for (const float x : ahead.rows) put(x);
    for (std::size_t l = 0; l < layers; ++l) {
        for (std::size_t i = 0; i < rank * t.width; ++i) put(ahead.down[l * rank * t.width + i]);
        for (std::size_t i = 0; i < t.query_floats * rank; ++i) put(ahead.up[l * t.query_floats * rank + i]);
    }
    return out;
}

} // namespace

TEST_CASE("vectors that are embeddings, without additions, look like the text of these tokens") {
    tiny t;
    const auto prompt = t.words.encode("The king went to the river and looked at the boats.");
    const auto probe = continuation(t.words, "Question: Who");
    CHECK(probe_queries(t.weights, t.pool, prompt, modules(t, probe, 0)) ==
          probe_queries(t.weights, t.pool, prompt, probe));
}

TEST_CASE("the first layer's queries are W x + up down x, turned to the places behind the prompt") {
    tiny t;
    const auto prompt = t.words.encode("The king went to the river and looked at the boats.");
    const auto probe = continuation(t.words, "Question: Who");
    const auto ahead = modules(t, probe, 0.3);
    const auto queries = probe_queries(t.weights, t.pool, prompt, ahead);
    const auto& layer = t.weights.layer(0);
    const auto frequencies = t.weights.rope_frequencies();
    const std::size_t dim = t.weights.hyper().shape.head_dim;
    double worst = 0;
    for (std::size_t v = 0; v < probe.size(); ++v) {
        std::vector<double> x(t.width), low(rank, 0.0), q(t.query_floats, 0.0);
        double square = 0;
        for (std::size_t i = 0; i < t.width; ++i) {
            x[i] = static_cast<double>(ahead.rows[v * t.width + i]);
            square += x[i] * x[i];
        }
        for (std::size_t i = 0; i < t.width; ++i)
            x[i] *= static_cast<double>(layer.attention_norm[i]) /
                    std::sqrt(square / static_cast<double>(t.width) +
                              static_cast<double>(t.weights.hyper().epsilon));
        for (std::size_t r = 0; r < rank; ++r)
            for (std::size_t i = 0; i < t.width; ++i)
                low[r] += static_cast<double>(ahead.down[r * t.width + i]) * x[i];
        for (std::size_t j = 0; j < q.size(); ++j) {
            const auto w = t.row(layer.q, j);
            for (std::size_t i = 0; i < t.width; ++i) q[j] += static_cast<double>(w[i]) * x[i];
            for (std::size_t r = 0; r < rank; ++r)
                q[j] += static_cast<double>(ahead.up[j * rank + r]) * low[r];
        }
        for (std::size_t j = 0; j < q.size(); j += 2) { // neighbours are a pair
            const double angle = static_cast<double>(prompt.size() + v) * frequencies[j % dim / 2];
            const double a = q[j] * std::cos(angle) - q[j + 1] * std::sin(angle),
                         b = q[j] * std::sin(angle) + q[j + 1] * std::cos(angle);
            worst = std::max({worst, std::fabs(a - static_cast<double>(queries[0][v * q.size() + j])),
                              std::fabs(b - static_cast<double>(queries[0][v * q.size() + j + 1]))});
        }
    }
    CHECK(worst < 1e-3);
}

TEST_CASE("a file of modules is read whole, and what is none says so") {
    tiny t;
    const auto ahead = modules(t, continuation(t.words, "Question: Who"), 0.3);
    const std::string good = bytes_of_file(t, ahead);
    const auto read = [&](const std::string& bytes) {
        const scratch_file f(bytes);
        auto got = read_lookahead(f.path(), t.weights);
        return got.ok() ? "read" : got.error().message;
    };
    {
        const scratch_file f(good);
        const auto got = read_lookahead(f.path(), t.weights);
        REQUIRE(got.ok());
        CHECK(got->vectors == ahead.vectors);
        CHECK(got->rank == ahead.rank);
        CHECK(got->rows == ahead.rows);
        CHECK(got->down == ahead.down);
        CHECK(got->up == ahead.up);
    }
    CHECK(read(good.substr(0, good.size() - 4)).find("bytes; valid: " + std::to_string(good.size())) !=
          std::string::npos);
    CHECK(read(good.substr(0, 20)).find("has no header") != std::string::npos);
    CHECK(read("KVTLLATE" + good.substr(8)).find("is no file of trained lookahead modules") !=
          std::string::npos);
    auto other = good;
    other[8] = static_cast<char>(other[8] ^ 1);
    CHECK(read(other).find("was trained for another model") != std::string::npos);
    auto many = good;
    std::memset(many.data() + 32, 0x7F, 4);
    CHECK(read(many).find("valid: 1 to 4096 vectors") != std::string::npos);
    auto broken = good;
    const float bad = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(broken.data() + broken.size() - 4, &bad, 4);
    CHECK(read(broken).find("holds a number that is not finite") != std::string::npos);
    CHECK(read_lookahead("/nowhere", t.weights).error().message.find("--lookahead: cannot read") == 0);
}
