// Conversations that are stored elsewhere, too: --remote, and the threads that talk to it, so that no batch waits for a network.
//
// What:    ask() begins to fetch what is longer than the server has of a prompt; the prompt waits for it, up to a deadline. What is
//          stored in the folder is handed to put(), and sent when there is time; what could not be sent is tried again, 5 times in
//          30 s. Whatever fails is computed, or stays in the folder. A folder of all servers is swept once an hour.
// Errors:  a line on standard error when the remote begins to fail, one when it goes on, and one for each conversation that is given
//          up unsent; statistics().not_put counts those.
// Bounds:  files that have come and were not taken count against the bytes of the store, and leave its free bytes on the disk.
// Threads: one that reads and one that writes, each with a connection of its own. ask(), use(), fetch(), put() and finish() belong to
//          the scheduler's thread; statistics() to any.
// Memory:  what remote_tier says, twice; the tokens of prompts that wait, and of at most 64 conversations to be sent.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/remote_tier.hpp>

#include "job.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace kvtl_server {

struct remote_options {
    std::string place{};         ///< folder:PATH, redis://.., rediss://..; "": none
    std::string ca_file{};       ///< of rediss://; "": those of the system
    std::string cert_file{};     ///< of rediss://: what the server is shown; "": nothing
    std::string key_file{};      ///< its key; "": in cert_file
    std::string password_file{}; ///< whose first line is the password of the servers; "": as `place` has it
    std::chrono::milliseconds timeout{2000};
    std::chrono::seconds ttl{86400};
};

/// A tier at a place, and what its kind can do.
struct remote_place {
    std::unique_ptr<kvtl::prefix_tier> tier{};
    std::function<kvtl::remote_statistics()> count{};
    std::function<kvtl::status(kvtl::blob_deadline)>
        sweep{}; ///< removes what has ended; empty: the place does so
};
/// Throws bad_input for a place that can never work; one that only does not answer is no error.
[[nodiscard]] remote_place open_remote(const remote_options& o, const std::string& names);

/// The folder that fetched files come to, and what they must leave.
struct remote_bounds {
    std::string folder;
    std::uint64_t file_bytes = 0; ///< of all files
    std::uint64_t free_bytes = 0; ///< of the file system
};

/// Something that is fetched for a prompt. The file is removed with it, unless use() has taken it.
class errand {
  public:
    /// `untaken`: bytes of files that have come and were not taken, which outlives this.
    errand(std::vector<token_id> prompt, std::string space, std::size_t beyond, std::string path,
           std::chrono::steady_clock::time_point until, std::atomic<std::uint64_t>& untaken)
        : prompt_(std::move(prompt)), space_(std::move(space)), beyond_(beyond), path_(std::move(path)),
          until_(until), untaken_(untaken) {}
    errand(const errand&) = delete;
    errand& operator=(const errand&) = delete;
    ~errand();

    /// It has come, or nobody waits for it any more.
    [[nodiscard]] bool over() const noexcept { return done_ || std::chrono::steady_clock::now() >= until_; }
    /// Tokens of the prompt that have come.
    [[nodiscard]] std::size_t tokens() const noexcept { return done_ ? tokens_ : 0; }
    [[nodiscard]] std::chrono::steady_clock::time_point until() const noexcept { return until_; }

  private:
    friend class remote_store;
    const std::vector<token_id> prompt_;
    const std::string space_;
    const std::size_t beyond_;
    const std::string path_;
    const std::chrono::steady_clock::time_point until_;
    std::atomic<std::uint64_t>& untaken_;
    std::uint64_t bytes_ = 0;
    std::size_t tokens_ = 0;
    std::atomic<bool> done_ = false;
};

class remote_store final : public kvtl::prefix_tier {
  public:
    static constexpr std::size_t least_gain = 64; ///< tokens, for which a prompt waits

    /// `bounds`: of the store. Throws bad_input; a remote that does not answer is a warning.
    remote_store(const remote_options& o, const std::string& names, remote_bounds bounds, std::uint64_t model,
                 std::chrono::milliseconds first_retry = std::chrono::seconds(2));
    ~remote_store() override;
    remote_store(const remote_store&) = delete;
    remote_store& operator=(const remote_store&) = delete;

    /// Called on the thread that reads when something has come.
    void when_it_comes(std::function<void()> call);

    /// `held`: tokens that the server has of the prompt. Null where there is nothing to gain.
    [[nodiscard]] std::shared_ptr<errand> ask(std::vector<token_id> prompt, const std::string& space,
                                              std::size_t held);
    /// The next calls of fetch() take what this has brought; null: nothing.
    void use(std::shared_ptr<errand> what) { used_ = std::move(what); }

    [[nodiscard]] kvtl::result<std::size_t> fetch(const kvtl::tier_request& wanted,
                                                  const std::string& path) override;
    kvtl::status put(const std::string& path, const kvtl::prefix_label& label,
                     std::span<const std::uint32_t> tokens) override;
    /// Waits until what was put is sent, or for so long.
    void finish(std::chrono::milliseconds most);

    [[nodiscard]] kvtl::remote_statistics statistics() const;

  private:
    struct parcel {
        std::string path;
        kvtl::prefix_label label;
        std::vector<std::uint32_t> tokens;
        unsigned tried = 0;
        std::chrono::steady_clock::time_point due{}; ///< not before
    };
    /// One of the two, and what it has counted.
    struct side {
        remote_place at;
        kvtl::remote_statistics counted; ///< when the last call ended
        bool failing = false;
    };
    void read();
    void write();
    void sweep();
    [[nodiscard]] std::uint64_t room() const;
    [[nodiscard]] std::string take_counts(side& s);
    [[nodiscard]] std::string try_later(parcel p, const kvtl::status& why);

    remote_bounds bounds_;
    std::uint64_t model_;
    std::chrono::milliseconds timeout_, first_retry_;
    std::atomic<std::uint64_t> untaken_ = 0;
    std::shared_ptr<errand> used_;

    mutable std::mutex mutex_; ///< of all below
    std::condition_variable changed_;
    side reader_, writer_;
    std::deque<std::shared_ptr<errand>> errands_;
    std::deque<parcel> parcels_;
    std::uint64_t dropped_ = 0; ///< parcels that were given up
    bool sending_ = false, finishing_ = false, over_ = false;
    std::function<void()> arrived_;
    std::thread reading_, writing_;
};

} // namespace kvtl_server
