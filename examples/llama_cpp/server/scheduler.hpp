// Continuous batching: the one thread that calls llama.cpp and kvtl. Each batch has the next token of every answer under way
// and a part of the prompts that are still to be read, so that nobody waits for a whole prompt of somebody else.
//
// Order:   first come, first served; who gets no sequence waits in a queue of bounded length.
// Errors:  a batch that fails ends the jobs that were in it, with the sentence of the library; the server goes on.
// Threads: submit(), stop() and slots() may be called by any.
// SPDX-License-Identifier: MIT
#pragma once

#include "conversations.hpp"
#include "job.hpp"
#include "metrics.hpp"
#include "text_stream.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace kvtl_server {

struct scheduler_options {
    std::size_t queue = 64;         ///< jobs that may wait
    std::size_t chunk_beside = 128; ///< tokens of prompts in a batch that has answers, too
    bool whole_prompts = false;     ///< a prompt comes in one batch: for policies that evict at its end
};

/// A sequence of the session, as others see it.
struct slot_state {
    bool busy = false;
    std::size_t tokens = 0; ///< held
};

class scheduler {
  public:
    scheduler(llama_run::session& s, conversations& c, metrics& m, const scheduler_options& o);
    ~scheduler();
    scheduler(const scheduler&) = delete;
    scheduler& operator=(const scheduler&) = delete;

    /// Null where the queue is full, or stop() was called.
    [[nodiscard]] std::shared_ptr<job> submit(generation g);

    /// Works until stop() is called. Every job has ended then, and what can be stored is; likewise if it throws.
    void run();
    void stop();
    [[nodiscard]] bool stopping() const;

    [[nodiscard]] std::vector<slot_state> slots() const;

  private:
    using clock = std::chrono::steady_clock;
    struct waiting_job {
        std::shared_ptr<job> what;
        clock::time_point since;
        bool looked = false;               ///< whether the remote has more of it
        std::shared_ptr<errand> fetched{}; ///< what it waits for; null: nothing
        [[nodiscard]] bool ready() const noexcept {
            return looked && (fetched == nullptr || fetched->over());
        }
    };
    /// A sequence of the session and the job that it is busy with.
    struct slot {
        std::shared_ptr<job> what; ///< null: idle
        clock::time_point since, last_token;
        token_usage usage;
        std::vector<token_id> prompt;
        std::size_t read = 0;   ///< tokens of the prompt
        std::size_t shared = 0; ///< of the prompt: where it is stored for others; 0: nowhere
        std::optional<engine::sampler> choice;
        std::optional<text_stream> text;
        std::optional<token_id> next;     ///< chosen, not decoded yet
        std::optional<std::size_t> asked; ///< the token of the batch that has its logits
        bool abandoned = false; ///< its client has left; one token more ends what was read of its prompt
    };

    [[nodiscard]] bool wait_for_work();
    void forget_who_left();
    void look_ahead();
    void admit();
    void begin(waiting_job w, granted g);
    [[nodiscard]] bool fill();
    void read(unsigned i, bool beside);
    void decode();
    void take(unsigned i, std::span<const float> logits);
    void finish(unsigned i, finish_reason reason, std::optional<token_id> unread = {});
    void fail(unsigned i, const std::string& sentence);
    void leave(unsigned i, std::optional<token_id> unread = {});
    void put_away(unsigned i);
    void store_who_left();
    void publish();
    void end_all();

    llama_run::session& session_;
    conversations& conversations_;
    metrics& metrics_;
    scheduler_options options_;
    std::vector<slot> slots_;
    llama_run::token_batch batch_;
    std::size_t turn_ = 0;
    std::optional<unsigned> left_; ///< the sequence whose client left last, and which is not stored yet
    clock::time_point published_{};

    mutable std::mutex mutex_; ///< of all below
    std::condition_variable changed_;
    std::deque<waiting_job> queue_;
    std::vector<slot_state> states_;
    bool stopping_ = false;
};

} // namespace kvtl_server
