// A blob_store on servers that speak RESP2: one server, a list of servers, or a cluster.
//
// Where:   of a list, the server with the highest hash of its address and the placing part of the name (rendezvous hashing): if one
//          is lost, only its blobs are. A server that answers MOVED belongs to a cluster: from then on slots (CRC16 of the placing
//          part) decide, and are learned from such answers. ASK is followed once and not learned.
// Flight:  at most `in_flight` values or 4 MiB, and 512 short commands.
// Circuit: a server that cannot be reached, sends nothing for `stall` or breaks the protocol is left alone for `retry_first`, and
//          twice as long each time up to `retry_most`, until it answers a command. Calls that need it fail at once meanwhile. A
//          call whose own deadline ends first only closes the connection. One that the server closed while it was idle is
//          opened anew.
// Errors:  an error reply is the status of its blob; the text is the server's. A put() that a cluster moves fails: put it again.
//          While a slot migrates, new blobs of it are refused.
// Memory:  16 KiB per server, 32 KiB for a cluster.
// Threads: one call at a time.
// Limits:  whoever can write to the server decides what is read: checksums find damage, not malice.
// Source:  D. G. Thaler, C. V. Ravishankar, Using name-based mappings to increase hit rates, IEEE/ACM ToN 6 (1), 1998; Redis
//          cluster specification (slots, MOVED, ASK).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/store/blob_store.hpp>
#include <kvtl/store/resp_connection.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

template <class Stream = tcp_stream> struct resp_config {
    std::vector<server_address> servers{}; ///< a list, or some of a cluster
    resp_login login{};
    typename Stream::options stream{};
    std::chrono::milliseconds stall{500};        ///< that a server may send nothing
    std::chrono::milliseconds retry_first{1000}; ///< after a failure
    std::chrono::milliseconds retry_most{60000};
    std::size_t in_flight = 4;
};

/// Of a cluster. Source: Redis cluster specification, "CRC16-CCITT/XMODEM".
[[nodiscard]] constexpr std::uint16_t resp_slot(std::string_view name) noexcept {
    std::uint32_t crc = 0;
    for (const char c : placing_part(name)) {
        crc ^= std::uint32_t{static_cast<unsigned char>(c)} << 8;
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000U) != 0 ? (crc << 1) ^ 0x1021U : crc << 1;
        crc &= 0xFFFFU;
    }
    return static_cast<std::uint16_t>(crc % 16384);
}

template <class Stream = tcp_stream> class resp_store {
  public:
    using config = resp_config<Stream>;

    /// Connects to nothing yet.
    [[nodiscard, gnu::cold]] static result<resp_store> open(config c) {
        if (c.servers.empty())
            return status::failure(errc::invalid_argument,
                                   "resp store: servers is empty; valid: at least one");
        if (c.servers.size() > most_servers)
            return status::failure(errc::invalid_argument,
                                   "resp store: servers has %zu of them; valid: up to %zu", c.servers.size(),
                                   most_servers);
        if (c.in_flight == 0 || c.stall.count() <= 0)
            return status::failure(errc::invalid_argument,
                                   "resp store: in_flight is %zu and stall %lld ms; valid: at least 1",
                                   c.in_flight, static_cast<long long>(c.stall.count()));
        return resp_store(std::move(c));
    }

    resp_store(resp_store&&) noexcept = default;
    resp_store& operator=(resp_store&&) = delete;

    /// Asks every server for an answer; the first error, if any. file_refused: a wrong password, database or certificate.
    [[gnu::cold]] status check(blob_deadline until) {
        status first;
        for (std::size_t i = 0; i < nodes_.size(); ++i)
            if (status s = reach(i, time(until)); !s && first.ok()) first = s;
        return first;
    }

    status put(const std::string& name, std::span<const std::byte> bytes, std::chrono::seconds ttl,
               blob_deadline until) {
        if (!slots_.empty() && slots_[resp_slot(name)] == no_node) { // a value is not sent twice
            std::uint8_t there = 0;
            if (status s = touch(std::span(&name, 1), std::chrono::seconds(0), std::span(&there, 1), until);
                !s)
                return keep_first(s);
        }
        while (flying_.size() >= config_.in_flight) land(until);
        if (blob_clock::now() >= until) return keep_first(too_late());
        const std::size_t at = place(name);
        const std::string seconds = std::to_string(std::max<std::int64_t>(ttl.count(), 1));
        status s = reach(at, time(until));
        if (s)
            s = lost_if(at, nodes_[at].link.send({"SET", name}, bytes, {"EX", seconds}, time(until)), until);
        if (!s) return keep_first(s);
        flying_.push_back({at, nodes_[at].connected, name});
        return first_;
    }
    status settle(blob_deadline until) {
        while (!flying_.empty()) land(until);
        return std::exchange(first_, {});
    }

    status get(std::span<const std::string> names, std::span<const std::span<std::byte>> into,
               std::span<std::uint64_t> bytes, blob_deadline until) {
        std::fill(bytes.begin(), bytes.end(), no_blob);
        const auto ask = [&](auto& link, std::size_t i) { link.queue({"GET", names[i]}); };
        const auto take = [&](const resp_reply& r, std::size_t i) {
            if (r.is == resp_reply::what::bulk) bytes[i] = static_cast<std::uint64_t>(r.number);
            return r.is == resp_reply::what::bulk || r.is == resp_reply::what::nil;
        };
        const auto place_of = [&](std::size_t i) { return into[i]; };
        return run(names, place_of, ask, take, until);
    }

    status touch(std::span<const std::string> names, std::chrono::seconds ttl, std::span<std::uint8_t> there,
                 blob_deadline until) {
        std::fill(there.begin(), there.end(), std::uint8_t{0});
        const std::string seconds = std::to_string(ttl.count());
        const auto ask = [&](auto& link, std::size_t i) {
            if (ttl.count() == 0)
                link.queue({"EXISTS", names[i]});
            else
                link.queue({"EXPIRE", names[i], seconds});
        };
        const auto take = [&](const resp_reply& r, std::size_t i) {
            there[i] = r.is == resp_reply::what::number && r.number == 1;
            return r.is == resp_reply::what::number;
        };
        return run(names, no_place, ask, take, until);
    }

    status remove(std::span<const std::string> names, blob_deadline until) {
        const auto ask = [&](auto& link, std::size_t i) { link.queue({"DEL", names[i]}); };
        const auto take = [](const resp_reply& r, std::size_t) { return r.is == resp_reply::what::number; };
        return run(names, no_place, ask, take, until);
    }

    /// Servers that are known: those of the configuration, and others of their cluster.
    [[nodiscard]] std::size_t servers() const noexcept { return nodes_.size(); }

  private:
    static constexpr std::size_t most_servers = 1000, most_short = 512, most_bytes = std::size_t{4} << 20;
    static constexpr std::uint16_t no_node = 0xFFFF;

    struct node {
        server_address address;
        resp_connection<Stream> link;
        std::uint64_t connected = 0; ///< how often: a reply of an earlier connection does not come
        blob_deadline closed_until{};
        std::chrono::milliseconds wait{};
    };
    struct flight {
        std::size_t node = 0;
        std::uint64_t connected = 0;
        std::string name{};
    };

    explicit resp_store(config c) : config_(std::move(c)) {
        for (const server_address& a : config_.servers) add(a);
    }
    std::size_t add(const server_address& a) {
        nodes_.push_back({.address = a, .link = resp_connection<Stream>(config_.stream)});
        return nodes_.size() - 1;
    }
    [[nodiscard]] call_time time(blob_deadline until) const noexcept { return {until, config_.stall}; }
    static constexpr auto no_place = [](std::size_t) { return std::span<std::byte>{}; };

    // ------------------------------------------------------------------------------------------------ servers

    /// Where a name lies, as far as is known.
    [[nodiscard]] std::size_t place(std::string_view name) const noexcept {
        if (!slots_.empty())
            if (const std::uint16_t at = slots_[resp_slot(name)]; at != no_node) return at;
        const std::string_view part = placing_part(name);
        std::size_t best = 0;
        std::uint64_t highest = 0;
        bool best_open = false;
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            // Any server of a cluster knows where a name lies. Of a list, a server that is away does not pass its names on.
            const bool open = slots_.empty() || blob_clock::now() >= nodes_[i].closed_until;
            const std::uint64_t score = weight(nodes_[i].address, part);
            if (i == 0 || (open && !best_open) || (open == best_open && score > highest))
                best = i, highest = score, best_open = open;
        }
        return best;
    }
    [[nodiscard]] static std::uint64_t weight(const server_address& a, std::string_view part) noexcept {
        std::uint64_t h = 0xCBF29CE484222325U; // FNV-1a, then the finalizer of SplitMix64
        const auto eat = [&h](std::string_view text) {
            for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
        };
        eat(a.host);
        h = (h ^ a.port) * 0x100000001B3U;
        eat(part);
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9U;
        h = (h ^ (h >> 27)) * 0x94D049BB133111EBU;
        return h ^ (h >> 31);
    }
    [[nodiscard]] status reach(std::size_t at, const call_time& t) {
        node& n = nodes_[at];
        if (n.link.is_open() && !n.link.was_closed_while_idle()) return {};
        const auto now = blob_clock::now();
        if (now < n.closed_until)
            return status::failure(
                errc::io_error, "server %.80s: it did not answer; it is tried again in %lld ms",
                n.address.text().c_str(),
                static_cast<long long>(
                    std::chrono::ceil<std::chrono::milliseconds>(n.closed_until - now).count()));
        ++n.connected;
        return lost_if(at, n.link.open(n.address, config_.login, {std::min(t.until, now + t.stall), t.stall}),
                       t.until);
    }
    /// Opens the circuit after a failure. A value that is too long is not the server's, nor is a deadline that ended the call.
    status lost_if(std::size_t at, const status& s, blob_deadline until) {
        node& n = nodes_[at];
        if (s.ok() || s.code() == errc::out_of_range || blob_clock::now() >= until) return s;
        n.wait = std::clamp(n.wait * 2, config_.retry_first, config_.retry_most);
        n.closed_until = blob_clock::now() + n.wait;
        std::replace(slots_.begin(), slots_.end(), static_cast<std::uint16_t>(at),
                     no_node); // others may have them now
        return s;
    }

    // ------------------------------------------------------------------------------------------------ commands

    /// Nothing was sent: no server is to blame.
    [[nodiscard]] static status too_late() noexcept {
        return status::failure(errc::io_error, "resp store: the deadline has passed");
    }
    /// room: bytes that a value may have.
    [[nodiscard]] status refused(std::size_t at, const resp_reply& r, std::size_t room = 0) const {
        if (r.is == resp_reply::what::too_long && room != 0)
            return status::failure(errc::out_of_range,
                                   "server %.80s: a value has %lld bytes; valid: up to %zu",
                                   nodes_[at].address.text().c_str(), static_cast<long long>(r.number), room);
        return status::failure(errc::io_error, "server %.80s: it refuses: %.120s",
                               nodes_[at].address.text().c_str(),
                               r.is == resp_reply::what::error ? r.text : "a reply of another kind");
    }
    status keep_first(const status& s) {
        if (!s && first_.ok()) first_ = s;
        return first_;
    }
    /// Takes the reply of the put() that has waited longest.
    void land(blob_deadline until) {
        const flight f = std::move(flying_.front());
        flying_.pop_front();
        resp_reply r;
        status s = receive(f, r, {}, until);
        if (s && r.is == resp_reply::what::error)
            static_cast<void>(redirection(f.node, r, resp_slot(f.name)));
        if (s && r.is != resp_reply::what::text) s = refused(f.node, r);
        static_cast<void>(keep_first(s));
    }
    [[nodiscard]] status receive(const flight& f, resp_reply& r, std::span<std::byte> into,
                                 blob_deadline until) {
        node& n = nodes_[f.node];
        if (!n.link.is_open() || n.connected != f.connected)
            return status::failure(errc::io_error, "server %.80s: the connection was lost",
                                   n.address.text().c_str());
        const status s = n.link.receive(r, into, time(until));
        if (s) n.wait = {};
        return lost_if(f.node, s, until);
    }
    /// Who a MOVED or ASK names, which a MOVED says of a slot from now on; nothing if the reply is another one.
    [[nodiscard]] std::optional<std::size_t> redirection(std::size_t from, const resp_reply& r,
                                                         std::uint16_t slot) {
        std::string_view words = r.words();
        const bool moved = words.starts_with("MOVED ");
        if (r.is != resp_reply::what::error || (!moved && !words.starts_with("ASK "))) return std::nullopt;
        words.remove_prefix(words.rfind(' ') + 1);
        const auto colon = words.rfind(':');
        server_address to;
        if (colon == words.npos) return std::nullopt;
        to.host = words.substr(0, colon);
        if (to.host.empty()) to.host = nodes_[from].address.host; // "the one that you know"
        const std::string_view port = words.substr(colon + 1);
        const auto parsed = std::from_chars(port.data(), port.data() + port.size(), to.port);
        if (parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()) return std::nullopt;
        std::size_t at = 0;
        while (at < nodes_.size() && nodes_[at].address != to) ++at;
        if (at == nodes_.size()) {
            if (at >= most_servers) return std::nullopt;
            at = add(to);
        }
        if (slots_.empty()) slots_.assign(16384, no_node);
        if (moved) slots_[slot] = static_cast<std::uint16_t>(at);
        return at;
    }

    /// Sends a command for each name and takes the replies, in flight together. ask(link, i) queues the command; take(reply, i) says
    /// whether the reply is of the right kind.
    template <class Place, class Ask, class Take>
    [[nodiscard]] status run(std::span<const std::string> names, const Place& place_of, const Ask& ask,
                             const Take& take, blob_deadline until) {
        while (!flying_.empty()) land(until); // their replies come first
        if (blob_clock::now() >= until) return too_late();
        status first;
        const auto note = [&](const status& s) {
            if (!s && first.ok()) first = s;
        };
        struct waiting {
            flight what;
            std::size_t i = 0;
        };
        std::deque<waiting> all;
        std::size_t bytes = 0;
        std::vector<std::pair<std::size_t, resp_reply>> again;
        const auto land_one = [&] {
            const waiting w = std::move(all.front());
            all.pop_front();
            bytes -= place_of(w.i).size();
            resp_reply r;
            if (status s = receive(w.what, r, place_of(w.i), until); !s) return note(s);
            if (redirection(w.what.node, r, resp_slot(names[w.i])))
                again.push_back({w.i, r});
            else if (!take(r, w.i))
                note(refused(w.what.node, r, place_of(w.i).size()));
        };
        for (std::size_t i = 0; i < names.size(); ++i) {
            const std::size_t more = place_of(i).size();
            const bool large = more > 4096;
            while (!all.empty() &&
                   (all.size() >= (large ? config_.in_flight : most_short) || bytes + more > most_bytes))
                land_one();
            const std::size_t at = place(names[i]);
            status s = reach(at, time(until));
            if (s && nodes_[at].link.is_full()) s = lost_if(at, nodes_[at].link.flush(time(until)), until);
            if (!s) {
                note(s);
                continue;
            }
            ask(nodes_[at].link, i);
            all.push_back({{at, nodes_[at].connected, {}}, i});
            bytes += more;
        }
        while (!all.empty()) land_one();
        for (auto& [i, r] : again) note(follow(names[i], r, i, place_of, ask, take, until));
        return first;
    }
    /// Asks again where a reply says, at most 4 times.
    template <class Place, class Ask, class Take>
    [[nodiscard]] status follow(std::string_view name, resp_reply r, std::size_t i, const Place& place_of,
                                const Ask& ask, const Take& take, blob_deadline until) {
        std::size_t at = place(name);
        for (int hops = 0; hops < 4; ++hops) {
            const bool asking = r.words().starts_with("ASK ");
            const auto to = redirection(at, r, resp_slot(name));
            if (!to) break;
            at = *to;
            if (status s = reach(at, time(until)); !s) return s;
            if (asking) nodes_[at].link.queue({"ASKING"});
            ask(nodes_[at].link, i);
            const flight f{at, nodes_[at].connected, {}};
            resp_reply asked;
            if (asking)
                if (status s = receive(f, asked, {}, until); !s) return s;
            if (status s = receive(f, r, place_of(i), until); !s) return s;
            if (r.is != resp_reply::what::error)
                return take(r, i) ? status{} : refused(at, r, place_of(i).size());
        }
        return refused(at, r);
    }

    config config_;
    std::vector<node> nodes_;
    std::vector<std::uint16_t> slots_; ///< of a cluster: the node, or no_node; empty: no cluster
    std::deque<flight> flying_;        ///< put() without a reply
    status first_;                     ///< error of put(), for settle()
};
static_assert(blob_store<resp_store<>>);

}} // namespace kvtl::v0
