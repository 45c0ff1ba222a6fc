// A registry with the one policy `dense`, so that the program's own behaviour is tested without any preset.
// Its file holds nothing; it is made and removed as kvtl's would be.
// SPDX-License-Identifier: MIT
#include "dense_cache.hpp"
#include "policy_list.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace engine {

namespace {

struct scratch_file {
    std::string path;
    ~scratch_file() {
        if (!path.empty()) ::unlink(path.c_str());
    }
};

class dense_cache_with_file final : public kv_cache {
  public:
    dense_cache_with_file(const cache_options& options, std::string path) : cache_(options), io_(options.io) {
        file_.path = std::move(path);
        for (const auto& s : options.settings)
            if (s.field == "fail_at") cache_.fail_at(std::stoul(s.value));
    }
    kvtl::result<kvtl::sequence_id> begin() override { return cache_.begin(); }
    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        return cache_.prefill(seq, layer, in, out, shard);
    }
    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        return cache_.attend(seq, layer, in, out, shard);
    }
    kvtl::status prefetch(kvtl::sequence_id seq, std::uint32_t layer, std::span<const float> q,
                          unsigned shard) noexcept override {
        return cache_.prefetch(seq, layer, q, shard);
    }
    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        return cache_.rewind(seq, n);
    }
    kvtl::status end(kvtl::sequence_id seq) noexcept override { return cache_.end(seq); }
    [[nodiscard]] cache_stats stats() const override {
        auto s = cache_.stats();
        s.io = io_;
        return s;
    }
    [[nodiscard]] unsigned shards() const noexcept override { return cache_.shards(); }

  private:
    dense_cache cache_;
    std::string io_;
    scratch_file file_;
};

} // namespace

kvtl::result<std::unique_ptr<kv_cache>> open_cache(const cache_options& options) {
    // Refuses io_uring as some kernels and containers do.
    if (options.io == "uring") return kvtl::error(kvtl::errc::unsupported, "io_uring_setup: not permitted");
    std::string path;
    if (options.io == "posix") {
        const int fd = ::open(options.path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
            return kvtl::error(kvtl::errc::file_refused,
                               "cannot create " + options.path + ": " + std::strerror(errno));
        ::close(fd);
        path = options.path;
    }
    return std::unique_ptr<kv_cache>(std::make_unique<dense_cache_with_file>(options, std::move(path)));
}

kvtl::result<memory_use> least_memory(const cache_options& o) {
    const std::size_t raw = o.max_tokens * o.shape.layers * o.shape.kv_heads * o.shape.head_dim * 4;
    return memory_use{{{"window", 4 * raw}}, raw}; // doubles
}

cache_wants policy_wants(std::string_view) {
    return {};
}

std::vector<std::string_view> policy_names() {
    return {"dense"};
}

std::vector<policy_entry> listed_policies() {
    return {{"dense", "exact: everything is attended", "all entries, in double precision"}};
}

} // namespace engine
