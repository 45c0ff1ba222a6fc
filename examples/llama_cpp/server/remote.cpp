// SPDX-License-Identifier: MIT
#include "remote.hpp"

#include <kvtl/store/blob_folder.hpp>
#include <kvtl/store/resp_store.hpp>
#ifdef KVTL_HAS_TLS
#include <kvtl/store/tls_stream.hpp>
#endif

#include "error.hpp"
#include "program.hpp"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <utility>

namespace kvtl_server {

namespace {

using engine::require;
using std::chrono::steady_clock;

constexpr const char* valid_places =
    "; valid: folder:PATH, redis://[[USER]:PASSWORD@]HOST:PORT[,HOST:PORT...][/DATABASE], or rediss:// "
    "likewise";

std::uint64_t number_of(std::string_view text, std::uint64_t most, const std::string& what) {
    std::uint64_t n = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), n);
    require(parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size() && n <= most,
            "--remote: " + what + " is '" + std::string(text) + "'" + valid_places);
    return n;
}

struct server_list {
    std::vector<kvtl::server_address> servers;
    kvtl::resp_login login;
};

/// What stands behind "redis://". A password is not repeated in messages.
server_list parse_servers(std::string_view text) {
    server_list all;
    if (const auto at = text.rfind('@'); at != text.npos) {
        const std::string_view who = text.substr(0, at);
        const auto colon = who.find(':');
        require(colon != who.npos, std::string("--remote: there is no : before the password") + valid_places);
        all.login.user = who.substr(0, colon);
        all.login.password = who.substr(colon + 1);
        require(!all.login.password.empty(), std::string("--remote: the password is empty") + valid_places);
        text.remove_prefix(at + 1);
    }
    if (const auto slash = text.find('/'); slash != text.npos) {
        all.login.database = static_cast<unsigned>(number_of(text.substr(slash + 1), 65535, "the database"));
        text = text.substr(0, slash);
    }
    while (!text.empty()) {
        const auto comma = text.find(',');
        const std::string_view one = text.substr(0, comma);
        text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
        const auto colon = one.rfind(':');
        require(colon != one.npos && colon != 0 && !(one.starts_with('[') && one[colon - 1] != ']'),
                "--remote: '" + std::string(one) + "' has no host and port" + valid_places);
        std::string_view host = one.substr(0, colon);
        if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
        const std::uint64_t port = number_of(one.substr(colon + 1), 65535, "the port");
        require(port != 0, std::string("--remote: the port is 0") + valid_places);
        all.servers.push_back({std::string(host), static_cast<std::uint16_t>(port)});
    }
    require(!all.servers.empty(), std::string("--remote: there is no server") + valid_places);
    return all;
}

template <class Blobs>
std::unique_ptr<kvtl::prefix_tier> tier_over(Blobs blobs, const remote_options& o, const std::string& names,
                                             std::function<kvtl::remote_statistics()>& statistics) {
    auto tier = std::make_unique<kvtl::remote_tier<Blobs>>(
        std::move(blobs), kvtl::remote_config{.names = names, .ttl = o.ttl, .fetch_within = o.timeout});
    statistics = [t = tier.get()] { return t->statistics(); };
    return tier;
}

template <class Stream>
std::unique_ptr<kvtl::prefix_tier> tier_on(std::string_view servers, typename Stream::options stream,
                                           const remote_options& o, const std::string& names,
                                           std::function<kvtl::remote_statistics()>& statistics) {
    server_list list = parse_servers(servers);
    auto blobs = engine::insist(
        kvtl::resp_store<Stream>::open({.servers = std::move(list.servers),
                                        .login = std::move(list.login),
                                        .stream = std::move(stream),
                                        .stall = std::max(o.timeout / 4, std::chrono::milliseconds(1))}));
    const kvtl::status there = blobs.check(kvtl::blob_clock::now() + o.timeout);
    if (there.code() == kvtl::errc::file_refused)
        throw engine::bad_input(std::string("--remote: ") + there.what());
    if (!there)
        std::fprintf(stderr, "kvtl-server: warning: --remote: %s; what it has is computed until it answers\n",
                     there.what());
    return tier_over(std::move(blobs), o, names, statistics);
}

} // namespace

std::unique_ptr<kvtl::prefix_tier> open_remote(const remote_options& o, const std::string& names,
                                               std::function<kvtl::remote_statistics()>& statistics) {
    const std::string_view place = o.place;
    constexpr std::string_view folder = "folder:", plain = "redis://", secure = "rediss://";
    if (place.starts_with(folder)) {
        auto blobs = engine::insist(kvtl::blob_folder::open(std::string(place.substr(folder.size()))));
        if (const kvtl::status s = blobs.sweep(names); !s) throw engine::bad_input(s.what());
        return tier_over(std::move(blobs), o, names, statistics);
    }
    if (place.starts_with(plain))
        return tier_on<kvtl::tcp_stream>(place.substr(plain.size()), {}, o, names, statistics);
    require(place.starts_with(secure),
            std::string("--remote: the place begins with none of its kinds") + valid_places);
#ifdef KVTL_HAS_TLS
    return tier_on<kvtl::tls_stream>(place.substr(secure.size()), {.ca_file = o.ca_file}, o, names,
                                     statistics);
#else
    throw engine::bad_input(
        "--remote: this build has no TLS (OpenSSL 3 was missing); valid: folder:PATH, redis://..");
#endif
}

errand::~errand() {
    if (tokens_ != 0) static_cast<void>(kvtl::posix_file_ops::remove(path_));
}

remote_store::remote_store(const remote_options& o, const std::string& names, std::string folder,
                           std::uint64_t model, std::uint64_t most_bytes)
    : folder_(std::move(folder)), model_(model), most_bytes_(most_bytes), timeout_(o.timeout) {
    reader_.tier = open_remote(o, names, reader_.count);
    writer_.tier = open_remote(o, names, writer_.count);
    reading_ = std::thread([this] { read(); });
    writing_ = std::thread([this] { write(); });
}

remote_store::~remote_store() {
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
        changed_.notify_all();
    }
    reading_.join();
    writing_.join();
}

void remote_store::when_it_comes(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    arrived_ = std::move(call);
}

std::shared_ptr<errand> remote_store::ask(std::vector<token_id> prompt, const std::string& space,
                                          std::size_t held) {
    if (prompt.size() < held + least_gain) return nullptr;
    char name[40];
    std::snprintf(name, sizeof name, "/%032" PRIx64 ".kvs", ++next_);
    auto made = std::make_shared<errand>(std::move(prompt), space, held + least_gain - 1, folder_ + name,
                                         steady_clock::now() + timeout_);
    const std::lock_guard lock(mutex_);
    errands_.push_back(made);
    changed_.notify_all();
    return made;
}

kvtl::result<std::size_t> remote_store::fetch(const kvtl::tier_request& wanted, const std::string& path) {
    if (!used_ || used_->tokens() <= wanted.beyond || wanted.space.tenant != used_->space_)
        return std::size_t{0};
    kvtl::file_facts file;
    if (kvtl::posix_file_ops::inspect(used_->path_, file) < 0 || file.bytes > wanted.most_bytes)
        return std::size_t{0};
    if (kvtl::posix_file_ops::rename(used_->path_, path) < 0)
        return kvtl::status::failure(kvtl::errc::io_error, "a file that was fetched could not be renamed");
    return std::exchange(used_->tokens_, 0);
}

kvtl::status remote_store::put(const std::string& path, const kvtl::prefix_label& label,
                               std::span<const std::uint32_t> tokens) {
    constexpr std::size_t most_parcels = 64;
    const std::lock_guard lock(mutex_);
    std::erase_if(parcels_, [&](const parcel& p) { return p.path == path; }); // it was saved again
    if (parcels_.size() == most_parcels) parcels_.pop_front();
    parcels_.push_back({path, label, {tokens.begin(), tokens.end()}});
    changed_.notify_all();
    return {};
}

void remote_store::finish(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [&] { return parcels_.empty() && !sending_; });
}

kvtl::remote_statistics remote_store::statistics() const {
    const std::lock_guard lock(mutex_);
    const kvtl::remote_statistics &r = reader_.counted, &w = writer_.counted;
    kvtl::remote_statistics all = r;
    all.put = w.put;
    all.not_put = w.not_put;
    all.failed += w.failed;
    all.bytes_written = w.bytes_written;
    all.bytes_kept = w.bytes_kept;
    return all;
}

/// Behind a call, under the lock. Says when it begins to fail, and when it goes on.
void remote_store::take_counts(side& s) {
    const kvtl::remote_statistics now = s.count();
    const bool failed = now.failed != s.counted.failed;
    s.counted = now;
    if (failed == s.failing) return;
    s.failing = failed;
    if (failed)
        std::fprintf(stderr, "kvtl-server: --remote: %s; what it has is computed until it goes on\n",
                     now.last_failure.c_str());
    else
        std::fprintf(stderr, "kvtl-server: --remote: it goes on\n");
}

void remote_store::read() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return over_ || !errands_.empty(); });
        if (over_) return;
        const std::shared_ptr<errand> e = std::move(errands_.front());
        errands_.pop_front();
        const bool wanted = !e->over() && e.use_count() > 1;
        lock.unlock();
        std::vector<std::uint32_t> tokens;
        kvtl::result<std::size_t> got = std::size_t{0};
        if (wanted)
            got = reader_.tier->fetch({.tokens = e->prompt_,
                                       .space = {.tenant = e->space_},
                                       .model = model_,
                                       .beyond = e->beyond_,
                                       .most_bytes = most_bytes_},
                                      e->path_);
        lock.lock();
        if (wanted) take_counts(reader_);
        e->tokens_ = got ? *got : 0;
        e->done_ = true;
        if (arrived_) arrived_();
    }
}

void remote_store::write() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return over_ || !parcels_.empty(); });
        if (over_) return;
        const parcel p = std::move(parcels_.front());
        parcels_.pop_front();
        sending_ = true;
        lock.unlock();
        static_cast<void>(writer_.tier->put(p.path, p.label, p.tokens));
        lock.lock();
        sending_ = false;
        take_counts(writer_);
        changed_.notify_all();
    }
}

} // namespace kvtl_server
