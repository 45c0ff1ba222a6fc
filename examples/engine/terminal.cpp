// SPDX-License-Identifier: MIT
#include "terminal.hpp"

#include "error.hpp"
#include "stopwatch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <utility>

namespace engine {

namespace {

volatile std::sig_atomic_t interrupted = 0, ended = 0;
int no_input = -1; // a descriptor

extern "C" void interrupt(int) {
    interrupted = 1;
}
extern "C" void end_soon(int) {
    const int before = errno;
    ended = 1;
    ::dup2(no_input, STDIN_FILENO); // a read that is about to begin comes back, too
    errno = before;
}

/// While it exists Ctrl-C sets a flag, and a read from the terminal comes back. What asks a program to end does so as well
/// where the conversation is to be saved; and who closes the other end of a pipe does not end it without that.
class interrupts {
  public:
    explicit interrupts(bool ends) {
        take(0, interrupt);
        if (!ends) return;
        no_input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (no_input < 0) throw run_failure("cannot open /dev/null");
        for (std::size_t i = 1; i < std::size(signals); ++i)
            take(i, signals[i] == SIGPIPE ? SIG_IGN : end_soon);
    }
    ~interrupts() {
        for (std::size_t i = 0; i < taken_; ++i) ::sigaction(signals[i], &previous_[i], nullptr);
        if (no_input >= 0) ::close(no_input);
    }
    interrupts(const interrupts&) = delete;
    interrupts& operator=(const interrupts&) = delete;

  private:
    static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    void take(std::size_t i, void (*handler)(int)) {
        struct sigaction action = {};
        action.sa_handler = handler;
        ::sigemptyset(&action.sa_mask); // no SA_RESTART
        ::sigaction(signals[i], nullptr, &previous_[i]);
        // nohup stays nohup
        if (i == 0 || previous_[i].sa_handler != SIG_IGN) ::sigaction(signals[i], &action, nullptr);
        taken_ = i + 1;
    }

    struct sigaction previous_[std::size(signals)] = {};
    std::size_t taken_ = 0;
};

void print_help() {
    std::fputs("/rewind  forgets the last turn\n/exit    ends (so does the end of input)\n/help    this\n"
               "Ctrl-C stops an answer.\n",
               stderr);
}

void print_cost(turn_end end, const turn_cost& c, std::size_t held, std::size_t most) {
    const double steps = static_cast<double>(c.steps);
    const char* note = end == turn_end::stopped ? ", stopped"
                       : end == turn_end::full  ? ", the context is full"
                                                : "";
    std::fprintf(
        stderr,
        "[%zu tokens read in %.2f s, %zu generated at %.1f/s%s; %.1f KiB read per step, %.2f MiB resident; "
        "%zu of %zu tokens]\n",
        c.read, c.read_s, c.steps, c.generate_s > 0 ? steps / c.generate_s : 0.0, note,
        c.steps > 0 ? static_cast<double>(c.read_bytes) / 1024 / steps : 0.0,
        static_cast<double>(c.resident_bytes) / (1 << 20), held, most);
}

/// The end of a long text, from the beginning of a character on.
std::string end_of(const std::string& text) {
    constexpr std::size_t most = 2000;
    if (text.size() <= most) return text;
    std::size_t at = text.size() - most;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) ++at;
    return "..." + text.substr(at);
}

/// Goes on from a file, and shows what was said last.
run_report::loaded_state load(chat_engine& e, conversation& talk, const std::string& path) {
    const saved_state state = look_into_state(path);
    const stopwatch taken;
    const kvtl::loaded_sequence loaded = e.load(path);
    const run_report::loaded_state facts{loaded.tokens, taken.seconds(), loaded.exact};
    talk.go_on_from(state);
    std::fprintf(stderr, "[goes on from %s: %zu of %zu tokens%s]\n", path.c_str(), talk.tokens(),
                 e.max_tokens(), loaded.exact ? "" : "; later answers may be others than without the file");
    const auto& said = talk.messages();
    for (std::size_t m = said.size() - std::min<std::size_t>(said.size(), 2); m < said.size(); ++m)
        std::fprintf(stderr, "%s%s\n", said[m].role == "user" ? "> " : "", end_of(said[m].text).c_str());
    return facts;
}

std::optional<run_report::written_state> save(chat_engine& e, const conversation& talk,
                                              const std::string& path) {
    if (talk.tokens() == 0) {
        std::fprintf(stderr, "[nothing was said, and %s is not written]\n", path.c_str());
        return std::nullopt;
    }
    const stopwatch taken;
    const std::vector<std::byte> note = talk.so_far().note();
    const kvtl::save_facts saved = e.save(path, note);
    std::fprintf(stderr, "[saved to %s: %zu tokens, %.2f MiB]\n", path.c_str(), talk.tokens(),
                 static_cast<double>(saved.bytes) / (1 << 20));
    return run_report::written_state{.bytes = saved.bytes, .seconds = taken.seconds()};
}

/// Until the input ends.
void talk_on(chat_engine& e, conversation& talk, const terminal_options& o) {
    const bool typed = ::isatty(STDIN_FILENO) == 1;
    if (typed) print_help();
    std::optional<std::string> line = o.first;
    for (;;) {
        if (!line) {
            if (typed) std::fputs("> ", stderr);
            interrupted = 0;
            std::string text;
            if (ended != 0 || !std::getline(std::cin, text) || interrupted != 0 || ended != 0)
                break; // of a line that a signal cut off nothing is said
            line = std::move(text);
        }
        const std::string text = *std::exchange(line, std::nullopt);
        if (text.empty()) continue;
        if (text == "/exit") return;
        if (text == "/help") {
            print_help();
        } else if (text == "/rewind") {
            std::size_t again = 0;
            if (!talk.take_back(again))
                std::fputs("[there is nothing to take back]\n", stderr);
            else
                std::fprintf(stderr, "[took the last turn back, %zu tokens read again; %zu of %zu tokens]\n",
                             again, talk.tokens(), e.max_tokens());
        } else if (text.front() == '/' && text.find(' ') == std::string::npos && typed) {
            std::fprintf(stderr, "[unknown command %s]\n", text.c_str());
            print_help();
        } else {
            interrupted = 0;
            turn_cost cost;
            const turn_end end = talk.say(text, cost, [&](const std::string& piece) {
                if (!o.stream) return;
                std::fwrite(piece.data(), 1, piece.size(), stdout);
                if (std::fflush(stdout) != 0) ended = 1; // nobody reads it any more
            });
            if (end == turn_end::withdrawn) {
                std::fprintf(stderr,
                             cost.read == 0 ? "[no room: the conversation holds %zu of %zu tokens; /rewind "
                                              "gives some back, -c N makes more]\n"
                                            : "[stopped before the answer; %zu of %zu tokens]\n",
                             talk.tokens(), e.max_tokens());
                continue;
            }
            if (o.stream) std::printf("\n"), std::fflush(stdout);
            print_cost(end, cost, talk.tokens(), e.max_tokens());
        }
    }
    if (typed) std::fputs("\n", stderr);
}

} // namespace

void converse(chat_engine& e, const terminal_options& o, const char* program, run_report& report) {
    const interrupts while_it_lasts(!o.save_state.empty());
    conversation talk(e, o.generate, [] { return interrupted != 0 || ended != 0; });
    if (!talk.templated())
        std::fprintf(stderr,
                     "%s: the model has no chat template that is known here: what you type is a text, and "
                     "the model goes on "
                     "with it\n",
                     program);
    if (!o.load_state.empty()) report.loaded = load(e, talk, o.load_state);
    std::exception_ptr failure; // what was said before it is saved
    try {
        talk_on(e, talk, o);
    } catch (...) {
        failure = std::current_exception();
    }
    take_answers(report, talk.answers());
    if (!failure) {
        if (!o.save_state.empty()) report.saved = save(e, talk, o.save_state);
        return;
    }
    try {
        if (!o.save_state.empty()) report.saved = save(e, talk, o.save_state);
    } catch (const std::exception& why) {
        std::fprintf(stderr, "%s: not saved: %s\n", program, why.what());
    }
    std::rethrow_exception(failure);
}

} // namespace engine
