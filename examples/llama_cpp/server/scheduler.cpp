// SPDX-License-Identifier: MIT
#include "scheduler.hpp"

#include "error.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvtl_server {

namespace {

/// The next question of a conversation often comes at once.
constexpr std::chrono::seconds idle_before_storing{1};

double seconds(std::chrono::steady_clock::duration d) {
    return std::chrono::duration<double>(d).count();
}

} // namespace

scheduler::scheduler(llama_run::session& s, conversations& c, metrics& m, const scheduler_options& o)
    : session_(s), conversations_(c), metrics_(m), options_(o), slots_(c.size()), batch_(s.batch()),
      states_(c.size()) {
    metrics_.take(session_.stats(), conversations_.statistics());
    if (remote_store* const remote = c.remote())
        remote->when_it_comes([this] {
            const std::lock_guard lock(mutex_);
            changed_.notify_one();
        });
}

scheduler::~scheduler() {
    if (remote_store* const remote = conversations_.remote()) remote->when_it_comes({});
}

std::shared_ptr<job> scheduler::submit(generation g) {
    auto made = std::make_shared<job>(std::move(g));
    const std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= options_.queue) {
        ++metrics_.refused;
        return nullptr;
    }
    queue_.push_back({.what = made, .since = clock::now()});
    metrics_.waiting = queue_.size();
    changed_.notify_one();
    return made;
}

void scheduler::run() {
    try {
        while (wait_for_work()) {
            forget_who_left();
            look_ahead();
            admit();
            if (fill()) decode();
            store_who_left();
            publish();
        }
    } catch (...) {
        stop(); // who asks now is refused
        end_all();
        throw;
    }
    end_all();
}

void scheduler::stop() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
}

bool scheduler::stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
}

std::vector<slot_state> scheduler::slots() const {
    const std::lock_guard lock(mutex_);
    return states_;
}

/// Who has nothing else to do stores what was said.
bool scheduler::wait_for_work() {
    const bool busy =
        std::any_of(slots_.begin(), slots_.end(), [](const slot& s) { return s.what != nullptr; });
    const auto ready = [&] {
        return stopping_ || busy || std::any_of(queue_.begin(), queue_.end(), [](const waiting_job& w) {
                   return !w.looked || w.ready();
               });
    };
    const auto idle_at = clock::now() + idle_before_storing;
    bool all_stored = false;
    std::unique_lock lock(mutex_);
    while (!ready()) {
        if (!all_stored && clock::now() >= idle_at) {
            lock.unlock();
            all_stored = !conversations_.store_one();
            if (!all_stored) publish();
            lock.lock();
            continue;
        }
        auto until = all_stored ? clock::time_point::max() : idle_at;
        for (const waiting_job& w : queue_)
            if (w.fetched && !w.fetched->over()) until = std::min(until, w.fetched->until());
        if (until == clock::time_point::max())
            changed_.wait(lock);
        else
            changed_.wait_until(lock, until);
    }
    return !stopping_;
}

void scheduler::forget_who_left() {
    std::vector<waiting_job> left; // what was fetched for them is removed without the lock
    {
        const std::lock_guard lock(mutex_);
        const auto stay = std::stable_partition(queue_.begin(), queue_.end(),
                                                [](const waiting_job& w) { return !w.what->given_up(); });
        left.assign(std::move_iterator(stay), std::move_iterator(queue_.end()));
        queue_.erase(stay, queue_.end());
        metrics_.given_up += left.size();
        metrics_.waiting = queue_.size();
    }
    for (unsigned i = 0; i < slots_.size(); ++i)
        if (slot& s = slots_[i]; s.what && s.what->given_up() && !s.abandoned) {
            ++metrics_.given_up;
            const bool midway = s.read > s.usage.cached && s.read < s.prompt.size();
            if (midway && !options_.whole_prompts) {
                s.abandoned = true;
                s.shared = 0;
                s.prompt.resize(s.read + 1); // the cache takes no other call before its prompt has ended
                continue;
            }
            put_away(i);
        }
}

/// Who left may come back: what was said so far is stored, once no answer waits for that.
void scheduler::put_away(unsigned i) {
    leave(i, slots_[i].next);
    left_ = i;
}

void scheduler::store_who_left() {
    if (!left_ || std::any_of(slots_.begin(), slots_.end(), [](const slot& s) { return s.what != nullptr; }))
        return;
    conversations_.store_now(*std::exchange(left_, std::nullopt));
}

/// Begins to fetch what the remote has of the prompts that have come.
void scheduler::look_ahead() {
    for (;;) {
        std::shared_ptr<job> what;
        {
            const std::lock_guard lock(mutex_);
            for (const waiting_job& w : queue_)
                if (!w.looked) {
                    what = w.what;
                    break;
                }
            if (!what) return;
        }
        std::shared_ptr<errand> sent = conversations_.look_ahead(what->asked);
        const std::lock_guard lock(mutex_);
        for (waiting_job& w : queue_)
            if (w.what == what) {
                w.looked = true;
                w.fetched = std::move(sent);
            }
    }
}

void scheduler::admit() {
    for (;;) {
        waiting_job first;
        {
            const std::lock_guard lock(mutex_);
            const auto at =
                std::find_if(queue_.begin(), queue_.end(), [](const waiting_job& w) { return w.ready(); });
            if (at == queue_.end()) return;
            first = *at;
        }
        std::optional<granted> g;
        std::string failure;
        try {
            g = conversations_.take(first.what->asked, first.fetched);
            if (!g) return;
        } catch (const std::exception& e) {
            failure = e.what();
        }
        {
            const std::lock_guard lock(mutex_); // nobody else takes any
            std::erase_if(queue_, [&](const waiting_job& w) { return w.what == first.what; });
            metrics_.waiting = queue_.size();
        }
        if (g) {
            begin(std::move(first), *std::move(g));
        } else {
            ++metrics_.failed;
            first.what->fail(failure);
        }
    }
}

void scheduler::begin(waiting_job w, granted g) {
    const generation& asked = w.what->asked;
    slot& s = slots_[g.place];
    if (left_ == g.place) left_.reset();
    s = {};
    s.since = w.since;
    s.usage = {.prompt = g.prompt.size(), .cached = g.held};
    s.prompt = std::move(g.prompt);
    s.read = g.held;
    s.shared = g.shared;
    s.choice.emplace(asked.temperature, asked.seed, asked.top_p);
    s.text.emplace(asked.stop);
    s.what = std::move(w.what);
    metrics_.prompt_tokens += s.usage.prompt;
    metrics_.cached_tokens += s.usage.cached;
    ++metrics_.answering;
}

/// The next batch; false where nothing is left to do.
bool scheduler::fill() {
    batch_.clear();
    for (slot& s : slots_) s.asked.reset();
    // Answers come first: room for them is always there, as a batch has more tokens than there are slots.
    for (const bool answering : {true, false}) {
        const bool beside = batch_.size() > 0;
        for (std::size_t k = 0; k < slots_.size(); ++k) {
            const auto i = static_cast<unsigned>((turn_ + k) % slots_.size());
            slot& s = slots_[i];
            if (!s.what || s.next.has_value() != answering) continue;
            if (session_.one_sequence_per_batch() && batch_.size() > 0) continue;
            if (!answering) {
                read(i, beside);
                continue;
            }
            s.asked = batch_.size();
            batch_.add(*s.next, session_.held(i), i, true);
        }
    }
    ++turn_;
    return batch_.size() > 0;
}

void scheduler::read(unsigned i, bool beside) {
    slot& s = slots_[i];
    const auto& prompt = s.prompt;
    const std::size_t end = s.shared != 0 ? s.shared : prompt.size();
    const std::size_t left = end - s.read, held = session_.held(i);
    // Beside it there is room for the tokens of the answers, or it would wait until nobody is answered.
    const bool whole = options_.whole_prompts && s.read == 0 && left + slots_.size() <= session_.batch();
    const std::size_t room =
        beside && !whole ? std::min(batch_.room(), options_.chunk_beside) : batch_.room();
    const std::size_t n = std::min(left, room);
    if (n == 0 || (whole && n < left)) return; // it comes first in a later batch
    for (std::size_t t = 0; t < n; ++t) {
        const bool last = t + 1 == left;
        if (last && end == prompt.size()) s.asked = batch_.size();
        batch_.add(prompt[s.read + t], held + t, i, last);
    }
}

void scheduler::decode() {
    try {
        session_.decode(batch_);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "kvtl-server: a batch failed: %s\n", e.what());
        const llama_batch& b = batch_.get();
        for (std::size_t t = 0; t < batch_.size(); ++t) {
            const auto i = static_cast<unsigned>(b.seq_id[t][0]);
            if (slots_[i].what) fail(i, e.what());
        }
        return;
    }
    ++metrics_.steps;
    const llama_batch& b = batch_.get();
    for (std::size_t t = 0; t < batch_.size(); ++t) {
        const auto i = static_cast<unsigned>(b.seq_id[t][0]);
        const auto id = static_cast<token_id>(b.token[t]);
        conversations_.add(i, std::span(&id, 1));
        slot& s = slots_[i];
        if (s.next)
            s.next.reset();
        else
            ++s.read;
    }
    for (unsigned i = 0; i < slots_.size(); ++i)
        if (slots_[i].what && slots_[i].shared != 0 && slots_[i].read == slots_[i].shared) {
            conversations_.store_beginning(i);
            slots_[i].shared = 0;
        }
    for (unsigned i = 0; i < slots_.size(); ++i)
        if (slots_[i].what && slots_[i].asked) take(i, session_.logits(*slots_[i].asked));
}

void scheduler::take(unsigned i, std::span<const float> logits) {
    slot& s = slots_[i];
    if (s.abandoned) return put_away(i);
    const auto now = clock::now();
    if (s.usage.generated == 0)
        metrics_.first_token.observe(seconds(now - s.since));
    else
        metrics_.each_token.observe(seconds(now - s.last_token));
    s.last_token = now;
    const token_id id = s.choice->choose(logits);
    if (session_.model().is_end(id)) return finish(i, finish_reason::stop);
    ++s.usage.generated;
    ++metrics_.generated_tokens;
    s.what->say(s.text->add(session_.model().piece(id)));
    if (s.text->stopped()) return finish(i, finish_reason::stop, id);
    if (s.usage.generated == s.what->asked.max_tokens) return finish(i, finish_reason::length, id);
    s.next = id;
}

void scheduler::finish(unsigned i, finish_reason reason, std::optional<token_id> unread) {
    slot& s = slots_[i];
    ++metrics_.finished;
    metrics_.request.observe(seconds(clock::now() - s.since));
    s.what->say(s.text->finish());
    const auto what = s.what;
    const token_usage usage = s.usage;
    leave(i, unread);
    publish(); // who has the answer shall find the slot idle
    what->end(reason, usage);
}

void scheduler::fail(unsigned i, const std::string& sentence) {
    ++metrics_.failed;
    --metrics_.answering;
    slots_[i].what->fail(sentence);
    slots_[i] = {};
    conversations_.drop(i);
}

/// The job has ended; its tokens stay, except of a prompt that was not read to its end.
void scheduler::leave(unsigned i, std::optional<token_id> unread) {
    // Between two batches a prompt is open where a part of it was read.
    const bool read = slots_[i].read == slots_[i].prompt.size() || slots_[i].read == slots_[i].usage.cached;
    --metrics_.answering;
    slots_[i] = {};
    if (read)
        conversations_.give_back(i, unread);
    else
        conversations_.drop(i);
}

void scheduler::publish() {
    const auto now = clock::now();
    const bool idle =
        std::none_of(slots_.begin(), slots_.end(), [](const slot& s) { return s.what != nullptr; });
    if (idle || now - published_ > std::chrono::milliseconds(200)) {
        published_ = now;
        metrics_.take(session_.stats(), conversations_.statistics());
    }
    const std::lock_guard lock(mutex_);
    for (unsigned i = 0; i < slots_.size(); ++i)
        states_[i] = {.busy = slots_[i].what != nullptr, .tokens = conversations_.held(i)};
}

void scheduler::end_all() {
    const std::string sentence = "the server is stopping; ask again when it has started";
    for (unsigned i = 0; i < slots_.size(); ++i)
        if (slots_[i].what) {
            const auto what = slots_[i].what;
            ++metrics_.failed;
            leave(i);
            what->fail(sentence);
        }
    {
        std::deque<waiting_job> left;
        const std::lock_guard lock(mutex_); // released before what was fetched is removed
        left.swap(queue_);
        for (const waiting_job& w : left) w.what->fail(sentence);
    }
    while (conversations_.store_one()) {
    }
}

} // namespace kvtl_server
