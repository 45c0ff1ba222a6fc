// SPDX-License-Identifier: MIT
#include "metrics.hpp"

#include <cstdio>

namespace kvtl_server {

namespace {

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
}

void append_head(std::string& out, const char* name, const char* type, const char* help) {
    out.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ");
    out.append(name).append(" ").append(type).append("\n");
}

void append(std::string& out, const char* name, const char* type, const char* help,
            const std::string& value) {
    append_head(out, name, type, help);
    out.append(name).append(" ").append(value).append("\n");
}

} // namespace

void histogram::observe(double seconds) noexcept {
    std::size_t i = 0;
    while (i < bounds.size() && seconds > bounds[i]) ++i;
    ++counts_[i];
    sum_ += seconds;
}

void histogram::append_to(std::string& out, const char* name) const {
    std::uint64_t below = 0;
    for (std::size_t i = 0; i <= bounds.size(); ++i) {
        below += counts_[i];
        const std::string bound = i < bounds.size() ? number(bounds[i]) : "+Inf";
        out.append(name).append("_bucket{le=\"").append(bound).append("\"} ");
        out.append(std::to_string(below)).append("\n");
    }
    out.append(name).append("_sum ").append(number(sum_)).append("\n");
    out.append(name).append("_count ").append(std::to_string(below)).append("\n");
}

void metrics::take(const engine::cache_stats& s, const kvtl::prefix_statistics& stored) {
    const std::lock_guard lock(mutex_);
    store_ = stored;
    cache_ = {.memory = s.resident_bytes_peak,
              .storage = s.storage_bytes,
              .read = s.read_bytes,
              .reads = s.reads,
              .written = s.written_bytes,
              .hit_rate = s.hit_rate};
}

std::string metrics::text() const {
    cache_numbers cache;
    kvtl::prefix_statistics stored;
    const kvtl::remote_statistics remote = remote_ ? remote_() : kvtl::remote_statistics{};
    {
        const std::lock_guard lock(mutex_);
        cache = cache_;
        stored = store_;
    }
    std::string out;
    const auto count = [&](const char* name, const char* help, std::uint64_t value) {
        append(out, name, "counter", help, std::to_string(value));
    };
    const auto gauge = [&](const char* name, const char* help, std::uint64_t value) {
        append(out, name, "gauge", help, std::to_string(value));
    };
    count("kvtl_prompt_tokens_total", "Tokens of prompts, cached ones included.", prompt_tokens);
    count("kvtl_cached_prompt_tokens_total", "Tokens of prompts that were not computed again.",
          cached_tokens);
    count("kvtl_generation_tokens_total", "Tokens generated.", generated_tokens);
    count("kvtl_steps_total", "Batches decoded.", steps);
    append_head(out, "kvtl_requests_total", "counter", "Requests that have ended, by how.");
    const auto ended = [&](const char* how, std::uint64_t value) {
        out.append("kvtl_requests_total{status=\"").append(how).append("\"} ");
        out.append(std::to_string(value)).append("\n");
    };
    ended("finished", finished);
    ended("failed", failed);
    ended("disconnected", given_up);
    ended("refused", refused);
    gauge("kvtl_requests_running", "Requests that a slot is busy with.", answering);
    gauge("kvtl_requests_waiting", "Requests that wait for a slot.", waiting);
    const auto times = [&](const char* name, const char* help, const histogram& h) {
        append_head(out, name, "histogram", help);
        h.append_to(out, name);
    };
    times("kvtl_time_to_first_token_seconds", "From a request to the first token.", first_token);
    times("kvtl_time_per_output_token_seconds", "Between two tokens of an answer.", each_token);
    times("kvtl_request_seconds", "From a request to its end.", request);
    gauge("kvtl_cache_memory_bytes", "Memory that the KV cache has taken at most.", cache.memory);
    gauge("kvtl_cache_storage_bytes", "Bytes of the KV cache on flash.", cache.storage);
    count("kvtl_cache_read_bytes_total", "Bytes read from flash.", cache.read);
    count("kvtl_cache_reads_total", "Reads from flash.", cache.reads);
    count("kvtl_cache_written_bytes_total", "Bytes written to flash.", cache.written);
    append(out, "kvtl_cache_hit_rate", "gauge", "Share of the chosen bytes that was in memory.",
           number(cache.hit_rate));
    count("kvtl_store_loads_total", "Conversations that were loaded from files.", stored.loaded);
    count("kvtl_store_misses_total", "Prompts of which nothing was stored.", stored.missed);
    count("kvtl_store_loaded_tokens_total", "Tokens that were loaded.", stored.tokens_reloaded);
    count("kvtl_store_written_bytes_total", "Bytes written to files of conversations.", stored.bytes_written);
    count("kvtl_store_read_bytes_total", "Bytes read from them.", stored.bytes_read);
    count("kvtl_store_evictions_total", "Conversations that had to leave.", stored.evicted);
    count("kvtl_store_refusals_total", "Loads and writes that failed.", stored.refused);
    gauge("kvtl_store_conversations", "Conversations in files.", stored.prefixes);
    gauge("kvtl_store_bytes", "Bytes of their files.", stored.file_bytes);
    count("kvtl_remote_fetched_total", "Conversations that the remote had.", remote.fetched);
    count("kvtl_remote_too_late_total", "Prefixes that it had and could not have delivered in time.",
          remote.too_late);
    count("kvtl_remote_misses_total", "Prompts of which it had no more.", remote.missed);
    count("kvtl_remote_put_total", "Conversations that were sent to it.", remote.put);
    count("kvtl_remote_dropped_total", "Conversations that were given up unsent.", remote.not_put);
    count("kvtl_remote_failures_total", "Calls of it that failed.", remote.failed);
    count("kvtl_remote_read_bytes_total", "Bytes read from it.", remote.bytes_read);
    count("kvtl_remote_written_bytes_total", "Bytes written to it.", remote.bytes_written);
    return out;
}

} // namespace kvtl_server
