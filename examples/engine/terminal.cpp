// SPDX-License-Identifier: MIT
#include "terminal.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

namespace engine {

namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void interrupt(int) {
    interrupted = 1;
}

/// While it exists Ctrl-C sets the flag, and a read from the terminal comes back.
class interrupts {
  public:
    interrupts() {
        struct sigaction action = {};
        action.sa_handler = interrupt;
        ::sigemptyset(&action.sa_mask); // no SA_RESTART
        ::sigaction(SIGINT, &action, &previous_);
    }
    ~interrupts() { ::sigaction(SIGINT, &previous_, nullptr); }
    interrupts(const interrupts&) = delete;
    interrupts& operator=(const interrupts&) = delete;

  private:
    struct sigaction previous_ = {};
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

} // namespace

std::vector<answer> converse(chat_engine& e, const terminal_options& o, const char* program) {
    const interrupts while_it_lasts;
    conversation talk(e, o.generate, [] { return interrupted != 0; });
    if (!talk.templated())
        std::fprintf(stderr,
                     "%s: the model has no chat template that is known here: what you type is a text, and "
                     "the model goes on "
                     "with it\n",
                     program);
    const bool typed = ::isatty(STDIN_FILENO) == 1;
    if (typed) print_help();
    std::optional<std::string> line = o.first;
    for (;;) {
        if (!line) {
            if (typed) std::fputs("> ", stderr);
            interrupted = 0;
            std::string text;
            if (!std::getline(std::cin, text) || interrupted != 0) break;
            line = std::move(text);
        }
        const std::string text = *std::exchange(line, std::nullopt);
        if (text.empty()) continue;
        if (text == "/exit") return talk.answers();
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
                std::fflush(stdout);
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
    return talk.answers();
}

} // namespace engine
