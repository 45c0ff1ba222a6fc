# Cross-compiles for 64-bit Arm on Debian and Ubuntu; tests run under qemu-user. `scripts/deps.sh --cross` installs both.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

# xsimd is headers only, but its package file sits in a folder of the host's architecture, where CMake would not look.
file(GLOB _xsimd_dirs LIST_DIRECTORIES true /usr/lib/*/cmake/xsimd)
if(_xsimd_dirs AND NOT xsimd_DIR)
    list(GET _xsimd_dirs 0 xsimd_DIR)
endif()
