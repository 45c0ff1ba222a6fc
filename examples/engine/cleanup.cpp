// SPDX-License-Identifier: MIT
#include "cleanup.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

namespace engine {

namespace {

constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};

// What the handler may touch: memory that exists for the whole run, and a flag it can read at any moment.
char registered_path[PATH_MAX];
std::atomic<bool> registered = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// Threads that read one file lose it at the same moment. The first of them ends the program, and the others wait for that.
// The handler therefore stays in place: with SA_RESETHAND the second thread would end the program by the signal.
std::atomic_flag mapping_lost = ATOMIC_FLAG_INIT;

extern "C" void mapping_is_lost(int number, siginfo_t* what, void*) {
    if (mapping_lost.test_and_set())
        for (;;) ::pause();
    if (registered.load()) ::unlink(registered_path);
    if (what->si_code == BUS_ADRERR) { // of what is no longer in the file
        constexpr char text[] = ": a file that is read in place, as the model is, was cut short meanwhile\n";
        const char* name = program_invocation_short_name;
        static_cast<void>(!::write(STDERR_FILENO, name, std::strlen(name)));
        static_cast<void>(!::write(STDERR_FILENO, text, sizeof text - 1));
        ::_exit(1);
    }
    ::signal(number, SIG_DFL); // a failing memory, say
    ::raise(number);
}

extern "C" void remove_and_end(int number) {
    if (registered.load()) ::unlink(registered_path);
    // SA_RESETHAND has restored the default action, which takes over when this handler returns.
    ::raise(number);
}

} // namespace

signal_hold::signal_hold() {
    sigset_t ending;
    ::sigemptyset(&ending);
    for (const int number : ending_signals) ::sigaddset(&ending, number);
    ::pthread_sigmask(SIG_BLOCK, &ending, &previous_);
}

signal_hold::~signal_hold() {
    ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void remove_on_signal(const std::string& path) {
    registered = false; // the one before it has gone, and its path may have been taken again
    if (path.size() >= sizeof registered_path) return; // the kernel refuses such a path, so there is no file
    std::memcpy(registered_path, path.c_str(), path.size() + 1);
    registered = true;
    struct sigaction action = {};
    action.sa_handler = remove_and_end;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigemptyset(&action.sa_mask);
    for (const int number : ending_signals) {
        struct sigaction current = {};
        ::sigaction(number, nullptr, &current);
        if (current.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr); // nohup stays nohup
    }
}

void forget_file() {
    struct stat left = {};
    if (registered && ::stat(registered_path, &left) == 0 && left.st_size > 0)
        std::fprintf(stderr, "%s: the cache file %s could not be removed\n", program_invocation_short_name,
                     registered_path);
    registered = false;
}

void end_when_mapping_is_lost() {
    struct sigaction action = {};
    action.sa_sigaction = mapping_is_lost;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, nullptr);
}

} // namespace engine
