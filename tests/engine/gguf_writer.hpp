// Writes GGUF files for tests: metadata of any type, tensors in every stored type of the engine.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>

#include "gguf.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace engine {

/// A matrix as it is stored, and the exact values it stands for.
struct stored_matrix {
    std::string bytes;
    std::vector<double> values;
};

/// Quantises row-major values; the rules are ggml's: q8_0 maps the largest magnitude of a block to 127, q4_0
/// maps the value of largest magnitude to -8.
inline stored_matrix store_as(tensor_type type, const std::vector<double>& values) {
    stored_matrix s;
    const auto put = [&](const auto& x) { s.bytes.append(reinterpret_cast<const char*>(&x), sizeof x); };
    const auto put_half = [&](double x) {
        const auto half = kvtl::from_float<kvtl::f16>(static_cast<float>(x));
        put(half);
        return static_cast<double>(kvtl::to_float(half));
    };
    if (type == tensor_type::f32 || type == tensor_type::f16 || type == tensor_type::bf16) {
        for (const double x : values) {
            if (type == tensor_type::f16) {
                s.values.push_back(put_half(x));
            } else if (type == tensor_type::bf16) {
                const auto half = kvtl::from_float<kvtl::bf16>(static_cast<float>(x));
                put(half);
                s.values.push_back(static_cast<double>(kvtl::to_float(half)));
            } else {
                put(static_cast<float>(x));
                s.values.push_back(static_cast<double>(static_cast<float>(x)));
            }
        }
        return s;
    }
    for (std::size_t b = 0; b < values.size(); b += 32) {
        double extreme = 0;
        for (std::size_t i = 0; i < 32; ++i)
            if (std::abs(values[b + i]) > std::abs(extreme)) extreme = values[b + i];
        const bool wide = type == tensor_type::q8_0;
        const double scale = put_half(wide ? std::abs(extreme) / 127 : extreme / -8);
        int level[32];
        for (std::size_t i = 0; i < 32; ++i) {
            const double x = scale == 0 ? 0 : std::nearbyint(values[b + i] / scale);
            level[i] = static_cast<int>(std::clamp(x, wide ? -127.0 : -8.0, wide ? 127.0 : 7.0));
            s.values.push_back(scale * level[i]);
        }
        if (wide)
            for (const int q : level) s.bytes += static_cast<char>(q);
        else
            for (std::size_t i = 0; i < 16; ++i)
                s.bytes += static_cast<char>((level[i] + 8) | ((level[i + 16] + 8) << 4));
    }
    return s;
}

class gguf_writer {
  public:
    void text(const std::string& key, const std::string& value) { pair(key, 8, string(value)); }
    void u32(const std::string& key, std::uint32_t value) { pair(key, 4, raw(value)); }
    void f32(const std::string& key, float value) { pair(key, 6, raw(value)); }
    void flag(const std::string& key, bool value) { pair(key, 7, raw(static_cast<std::uint8_t>(value))); }
    void texts(const std::string& key, const std::vector<std::string>& values) {
        std::string all = raw(std::uint32_t{8}) + raw(std::uint64_t{values.size()});
        for (const auto& v : values) all += string(v);
        pair(key, 9, all);
    }
    void f32s(const std::string& key, const std::vector<float>& values) { list(key, 6, values); }
    void i32s(const std::string& key, const std::vector<std::int32_t>& values) { list(key, 5, values); }

    void tensor(const std::string& name, const std::vector<std::uint64_t>& extents, tensor_type type,
                const std::string& bytes) {
        records_ += string(name) + raw(static_cast<std::uint32_t>(extents.size()));
        for (const auto e : extents) records_ += raw(e);
        records_ += raw(static_cast<std::uint32_t>(type)) + raw(std::uint64_t{data_.size()});
        data_ += bytes;
        data_.append((32 - data_.size() % 32) % 32, '\0');
        ++tensors_;
    }

    [[nodiscard]] std::string bytes() const {
        std::string file =
            "GGUF" + raw(std::uint32_t{3}) + raw(tensors_) + raw(pairs_) + metadata_ + records_;
        file.append((32 - file.size() % 32) % 32, '\0');
        return file + data_;
    }
    void write(const std::string& path) const { std::ofstream(path, std::ios::binary) << bytes(); }

    template <class T> static std::string raw(const T& x) {
        return {reinterpret_cast<const char*>(&x), sizeof x};
    }
    static std::string string(const std::string& s) { return raw(std::uint64_t{s.size()}) + s; }

  private:
    void pair(const std::string& key, std::uint32_t type, const std::string& value) {
        metadata_ += string(key) + raw(type) + value;
        ++pairs_;
    }
    template <class T> void list(const std::string& key, std::uint32_t type, const std::vector<T>& values) {
        std::string all = raw(type) + raw(std::uint64_t{values.size()});
        for (const auto& v : values) all += raw(v);
        pair(key, 9, all);
    }

    std::string metadata_, records_, data_;
    std::uint64_t pairs_ = 0;
    std::uint64_t tensors_ = 0;
};

} // namespace engine
