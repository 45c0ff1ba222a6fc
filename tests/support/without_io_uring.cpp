// Runs a program on a kernel that refuses io_uring: without_io_uring PROGRAM [ARGUMENTS...]
// SPDX-License-Identifier: MIT
#include "forbid.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

int main(int argc, char** argv) {
    if (argc < 2 || !kvtl_test::forbid(SYS_io_uring_setup, EPERM)) return 125;
    ::execv(argv[1], argv + 1);
    std::perror(argv[1]);
    return 126;
}
