// SPDX-License-Identifier: MIT
#include "remote.hpp"

#include <kvtl/store/blob_folder.hpp>
#include <kvtl/store/resp_store.hpp>
#ifdef KVTL_HAS_TLS
#include <kvtl/store/tls_stream.hpp>
#endif

#include "error.hpp"
#include "input_file.hpp"
#include "program.hpp"

#include <algorithm>
#include <array>
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

/// The text may be a password whose @ is missing: it is not repeated.
std::uint64_t number_of(std::string_view text, std::uint64_t most, const std::string& what) {
    std::uint64_t n = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), n);
    require(parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size() && n <= most,
            "--remote: " + what + " is no number up to " + std::to_string(most) + valid_places);
    return n;
}

/// The first line of a file; "" where there is no name of one.
std::string read_password(const std::string& file) {
    if (file.empty()) return {};
    const auto text = engine::read_input(file, 1 << 16, "file of a password", engine::input_kind::any);
    if (!text) throw engine::bad_input("--remote-password-file: " + text.error().message);
    std::string password = text->substr(0, text->find('\n'));
    if (password.ends_with('\r')) password.pop_back();
    require(!password.empty(),
            "--remote-password-file: the first line of " + file + " is empty; valid: a password");
    return password;
}

struct server_list {
    std::vector<kvtl::server_address> servers;
    kvtl::resp_login login;
};

/// What stands behind "redis://". A password is not repeated in messages.
server_list parse_servers(std::string_view text, const std::string& password_file) {
    server_list all;
    all.login.password = read_password(password_file);
    if (const auto at = text.rfind('@'); at != text.npos) {
        const std::string_view who = text.substr(0, at);
        const auto colon = who.find(':');
        require(colon != who.npos || !password_file.empty(),
                std::string("--remote: there is no : before the password") + valid_places);
        all.login.user = who.substr(0, colon);
        if (colon != who.npos) {
            require(password_file.empty(),
                    "--remote-password-file: valid: with a place that has no password");
            all.login.password = who.substr(colon + 1);
            require(!all.login.password.empty(),
                    std::string("--remote: the password is empty") + valid_places);
        }
        text.remove_prefix(at + 1);
    }
    if (const auto slash = text.find('/'); slash != text.npos) {
        all.login.database = static_cast<unsigned>(number_of(text.substr(slash + 1), 65535, "the database"));
        text = text.substr(0, slash);
    }
    while (!text.empty()) {
        const std::string number = std::to_string(all.servers.size() + 1);
        const auto comma = text.find(',');
        const std::string_view one = text.substr(0, comma);
        text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
        const auto colon = one.rfind(':');
        require(colon != one.npos && colon != 0 && !(one.starts_with('[') && one[colon - 1] != ']'),
                "--remote: server " + number + " has no host and port" + valid_places);
        std::string_view host = one.substr(0, colon);
        if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
        const std::uint64_t port = number_of(one.substr(colon + 1), 65535, "the port of server " + number);
        require(port != 0, std::string("--remote: the port is 0") + valid_places);
        all.servers.push_back({std::string(host), static_cast<std::uint16_t>(port)});
    }
    require(!all.servers.empty(), std::string("--remote: there is no server") + valid_places);
    return all;
}

template <class Blobs>
remote_place tier_over(Blobs blobs, const remote_options& o, const std::string& names) {
    auto tier = std::make_unique<kvtl::remote_tier<Blobs>>(engine::insist(kvtl::remote_tier<Blobs>::open(
        std::move(blobs), {.names = names, .ttl = o.ttl, .fetch_within = o.timeout})));
    remote_place place{.count = [t = tier.get()] { return t->statistics(); }};
    if constexpr (requires { tier->blobs().sweep("", kvtl::blob_deadline()); })
        place.sweep = [t = tier.get()](kvtl::blob_deadline until) {
            return t->blobs().sweep("kvtl:", until);
        };
    place.tier = std::move(tier);
    return place;
}

template <class Stream>
remote_place tier_on(std::string_view servers, typename Stream::options stream, const remote_options& o,
                     const std::string& names) {
    server_list list = parse_servers(servers, o.password_file);
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
    return tier_over(std::move(blobs), o, names);
}

} // namespace

remote_place open_remote(const remote_options& o, const std::string& names) {
    const std::string_view place = o.place;
    constexpr std::string_view folder = "folder:", plain = "redis://", secure = "rediss://";
    if (place.starts_with(folder))
        return tier_over(engine::insist(kvtl::blob_folder::open(std::string(place.substr(folder.size())))), o,
                         names);
    if (place.starts_with(plain)) return tier_on<kvtl::tcp_stream>(place.substr(plain.size()), {}, o, names);
    require(place.starts_with(secure),
            std::string("--remote: the place begins with none of its kinds") + valid_places);
#ifdef KVTL_HAS_TLS
    return tier_on<kvtl::tls_stream>(place.substr(secure.size()),
                                     {.ca_file = o.ca_file, .cert_file = o.cert_file, .key_file = o.key_file},
                                     o, names);
#else
    throw engine::bad_input(
        "--remote: this build has no TLS (OpenSSL 3 was missing); valid: folder:PATH, redis://..");
#endif
}

errand::~errand() {
    if (tokens_ != 0) static_cast<void>(kvtl::posix_file_ops::remove(path_));
    untaken_ -= bytes_;
}

remote_store::remote_store(const remote_options& o, const std::string& names, remote_bounds bounds,
                           std::uint64_t model, std::chrono::milliseconds first_retry)
    : bounds_(std::move(bounds)), model_(model), timeout_(o.timeout), first_retry_(first_retry) {
    reader_.at = open_remote(o, names);
    writer_.at = open_remote(o, names);
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
    std::array<std::uint64_t, 2> number{}; // a file of a server that crashed may still be there
    if (kvtl::posix_file_ops::fill_random(std::as_writable_bytes(std::span(number))) < 0) return nullptr;
    char name[40];
    std::snprintf(name, sizeof name, "/%016" PRIx64 "%016" PRIx64 ".kvs", number[0], number[1]);
    auto made = std::make_shared<errand>(std::move(prompt), space, held + least_gain - 1,
                                         bounds_.folder + name, steady_clock::now() + timeout_, untaken_);
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
    untaken_ -= std::exchange(used_->bytes_, 0);
    return std::exchange(used_->tokens_, 0);
}

kvtl::status remote_store::put(const std::string& path, const kvtl::prefix_label& label,
                               std::span<const std::uint32_t> tokens) {
    constexpr std::size_t most_parcels = 64;
    bool full = false;
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(parcels_, [&](const parcel& p) { return p.path == path; }); // it was saved again
        full = parcels_.size() == most_parcels;
        if (full) parcels_.pop_front(), ++dropped_;
        parcels_.push_back({path, label, {tokens.begin(), tokens.end()}});
        changed_.notify_all();
    }
    if (full)
        std::fprintf(stderr, "kvtl-server: --remote: a conversation is not sent, as %zu wait\n",
                     most_parcels);
    return {};
}

void remote_store::finish(std::chrono::milliseconds most) {
    std::size_t left = 0;
    {
        std::unique_lock lock(mutex_);
        finishing_ = true; // each is tried once more, at once
        changed_.notify_all();
        changed_.wait_for(lock, most, [&] { return parcels_.empty() && !sending_; });
        left = parcels_.size() + (sending_ ? 1 : 0);
        dropped_ += parcels_.size();
        parcels_.clear();
    }
    if (left != 0)
        std::fprintf(stderr, "kvtl-server: --remote: %zu conversations were not sent before the end\n", left);
}

kvtl::remote_statistics remote_store::statistics() const {
    const std::lock_guard lock(mutex_);
    const kvtl::remote_statistics &r = reader_.counted, &w = writer_.counted;
    kvtl::remote_statistics all = r;
    all.put = w.put;
    all.not_put = dropped_;
    all.failed += w.failed;
    all.bytes_written = w.bytes_written;
    all.bytes_kept = w.bytes_kept;
    return all;
}

/// Behind a call, under the lock. A line where it begins to fail, and where it goes on; "": nothing has changed.
std::string remote_store::take_counts(side& s) {
    const kvtl::remote_statistics now = s.at.count();
    const bool failed = now.failed != s.counted.failed;
    s.counted = now;
    if (failed == std::exchange(s.failing, failed)) return {};
    return failed ? now.last_failure + "; what it has is computed until it goes on" : "it goes on";
}

/// Under the lock. A line where it is given up; "": it is tried again.
std::string remote_store::try_later(parcel p, const kvtl::status& why) {
    constexpr unsigned most_tries = 5;
    if (std::any_of(parcels_.begin(), parcels_.end(), [&](const parcel& q) { return q.path == p.path; }))
        return {}; // it was saved again meanwhile
    if (++p.tried == most_tries || finishing_ || why.code() == kvtl::errc::invalid_argument)
        return ++dropped_, std::string("a conversation is not sent: ") + why.what();
    p.due = steady_clock::now() + first_retry_ * (1U << (p.tried - 1));
    parcels_.push_back(std::move(p));
    return {};
}

/// Bytes that a file may have which is fetched.
std::uint64_t remote_store::room() const {
    std::uint64_t free = 0;
    if (kvtl::posix_file_ops::free_bytes(bounds_.folder, free) < 0) return 0;
    const std::uint64_t untaken = untaken_;
    return std::min(bounds_.file_bytes - std::min(bounds_.file_bytes, untaken),
                    free - std::min(free, bounds_.free_bytes));
}

namespace {

void print(const std::string& line) {
    if (!line.empty()) std::fprintf(stderr, "kvtl-server: --remote: %s\n", line.c_str());
}

} // namespace

void remote_store::read() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return over_ || !errands_.empty(); });
        if (over_) return;
        std::shared_ptr<errand> e = std::move(errands_.front());
        errands_.pop_front();
        const bool wanted = !e->over() && e.use_count() > 1;
        lock.unlock();
        kvtl::result<std::size_t> got = std::size_t{0};
        if (wanted)
            got = reader_.at.tier->fetch({.tokens = e->prompt_,
                                          .space = {.tenant = e->space_},
                                          .model = model_,
                                          .beyond = e->beyond_,
                                          .most_bytes = room()},
                                         e->path_);
        kvtl::file_facts file;
        if (got && *got != 0 && kvtl::posix_file_ops::inspect(e->path_, file) >= 0)
            untaken_ += e->bytes_ = file.bytes;
        lock.lock();
        const std::string line = wanted ? take_counts(reader_) : std::string();
        e->tokens_ = got ? *got : 0;
        e->done_ = true;
        if (arrived_) arrived_();
        lock.unlock(); // nobody waits for the disk or the terminal
        e.reset();
        print(line);
        lock.lock();
    }
}

void remote_store::write() {
    constexpr std::chrono::hours between_sweeps(1);
    auto next_sweep = steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!over_) {
        const auto now = steady_clock::now();
        const auto first = std::min_element(parcels_.begin(), parcels_.end(),
                                            [](const parcel& a, const parcel& b) { return a.due < b.due; });
        if (first != parcels_.end() && (finishing_ || first->due <= now)) {
            parcel p = std::move(*first);
            parcels_.erase(first);
            sending_ = true;
            lock.unlock();
            const kvtl::status sent = writer_.at.tier->put(p.path, p.label, p.tokens);
            lock.lock();
            sending_ = false;
            const std::string line = take_counts(writer_);
            const std::string given_up = sent ? std::string() : try_later(std::move(p), sent);
            changed_.notify_all();
            lock.unlock();
            print(line);
            print(given_up);
            lock.lock();
        } else if (writer_.at.sweep && now >= next_sweep && !finishing_) {
            next_sweep = now + between_sweeps;
            lock.unlock();
            sweep();
            lock.lock();
        } else {
            auto until = writer_.at.sweep && !finishing_ ? next_sweep : now + between_sweeps;
            if (first != parcels_.end()) until = std::min(until, first->due);
            changed_.wait_until(lock, until);
        }
    }
}

/// What is left when the time is over is left to the next time.
void remote_store::sweep() {
    const auto until = steady_clock::now() + std::chrono::seconds(10);
    if (const kvtl::status s = writer_.at.sweep(until); !s && steady_clock::now() < until)
        print(std::string("what has ended could not be removed: ") + s.what());
}

} // namespace kvtl_server
