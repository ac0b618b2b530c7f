// Runs one CUDA kernel on the CPU, for tests of its arithmetic and of its barriers. Blocks run one after another. The threads of a block are
// fibers that take turns and give way at every barrier, shuffle and wait. See cuda_on_cpu.py, which replaces the kernel's inline assembly.
#include <immintrin.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> T __ldg(const T* p) { T v; memcpy(&v, p, sizeof v); return v; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __frsqrt_rn(float a) { return (float)(1.0 / std::sqrt((double)a)); }
inline float rsqrtf(float a) { return __frsqrt_rn(a); }

namespace emulated {

struct Dim { unsigned x; };
constexpr size_t STACK = 128 * 1024;
constexpr int NONE = -1;

struct Barrier { unsigned arrived = 0; uint64_t passed = 0; };
struct Phase { int64_t arrivals = 0, bytes = 0; unsigned parity = 0; };  // of an mbarrier
struct Copy { char* to; const char* from; unsigned bytes; uintptr_t full; };
struct Fiber { ucontext_t context; std::vector<char> stack; bool done = false; };

Dim thread_index, block_index, grid_size;
std::vector<Fiber> fibers;
ucontext_t scheduler;
unsigned current;
uint64_t steps;  // barriers passed, copies delivered, threads ended: without any in a whole turn, the block hangs
std::map<int, Barrier> named;
std::map<std::pair<int, int>, Barrier> warps;
std::map<int, std::vector<unsigned>> lanes;
std::map<uintptr_t, Phase> phases;
std::deque<Copy> copies;
bool late;  // copies arrive as late as they may: when no thread can go on; otherwise at once
std::string fault;
char origin;  // shared addresses are distances from here

inline void fail(const char* text) { if (fault.empty()) fault = text; }
inline void give_way() {
    swapcontext(&fibers[current].context, &scheduler);
}
inline void meet(Barrier& at, unsigned count) {
    const uint64_t before = at.passed;
    if (++at.arrived == count) {
        at.arrived = 0;
        ++at.passed;
        ++steps;
    }
    while (at.passed == before && fault.empty()) give_way();
}
inline void meet_warp() { meet(warps[{(int)thread_index.x / 32, 0}], 32); }
inline unsigned exchange(unsigned bits, unsigned from) {
    auto& slot = lanes[thread_index.x / 32];
    slot.resize(32);
    slot[thread_index.x % 32] = bits;
    meet_warp();
    const unsigned found = lanes[thread_index.x / 32][from % 32];
    meet_warp();
    return found;
}
inline void settle(Phase& p) {
    if (p.arrivals == 0 && p.bytes == 0) p.parity ^= 1, p.arrivals = 1, ++steps;
}
inline void deliver(const Copy& c) {
    memcpy(c.to, c.from, c.bytes);
    Phase& p = phases[c.full];
    p.bytes -= c.bytes;
    ++steps;
    settle(p);
}
inline char* place(unsigned address) { return &origin + (int32_t)address; }
inline void bar(unsigned id, unsigned count) { meet(named[(int)id], count); }
inline void init_barrier(unsigned at) { phases[(uintptr_t)place(at)] = {1, 0, 0}; }
inline void arrive(unsigned at, unsigned bytes) {
    Phase& p = phases[(uintptr_t)place(at)];
    p.arrivals -= 1;
    p.bytes += bytes;
    settle(p);
}
inline void bulk_copy(unsigned to, const char* from, unsigned bytes, unsigned full) {
    if (((uintptr_t)place(to) | (uintptr_t)from | bytes) % 16) fail("a bulk copy is not of whole vectors of 16 bytes");
    const Copy c{place(to), from, bytes, (uintptr_t)place(full)};
    if (late) copies.push_back(c);
    else deliver(c);
}
inline unsigned try_wait(unsigned at, unsigned parity) {
    if (phases.at((uintptr_t)place(at)).parity != parity || !fault.empty()) return 1;
    give_way();
    return 0;
}
inline void load16(unsigned* out, const char* from) {
    if ((uintptr_t)from % 16) fail("a load of 16 bytes does not start on 16 bytes");
    memcpy(out, from, 16);
}
inline float from_half(unsigned short h) { return _cvtsh_ss(h); }
inline unsigned short to_half(float f) { return _cvtss_sh(f, 0); }
inline unsigned short to_bfloat(float f) {
    unsigned u = __float_as_uint(f);
    if (std::isnan(f)) return 0x7fff;
    return (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

template <class... A, size_t... I> void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(std::decay_t<A>*)arguments[I]...);
}
void (*body)(void**);
void** given;
inline void start() {
    body(given);
    fibers[current].done = true;
    ++steps;
    swapcontext(&fibers[current].context, &scheduler);
}

inline void run_block(unsigned threads) {
    named.clear(), warps.clear(), lanes.clear(), phases.clear(), copies.clear();
    fibers.clear();
    fibers.resize(threads);
    for (auto& one : fibers) {
        one.stack.resize(STACK);
        getcontext(&one.context);
        one.context.uc_stack.ss_sp = one.stack.data();
        one.context.uc_stack.ss_size = STACK;
        one.context.uc_link = nullptr;
        makecontext(&one.context, start, 0);
    }
    const unsigned count = threads / 32;
    for (unsigned running = threads, round = 0; running > 0; ++round) {
        const uint64_t before = steps;
        running = 0;
        // Each warp runs as far ahead of the others as it can. Odd blocks take another order: one shows a race that the other hides.
        for (unsigned turn = 0; turn < count && fault.empty(); ++turn) {
            const unsigned warp = block_index.x % 2 ? (round + turn) % count : round % 2 ? count - 1 - turn : turn;
            uint64_t earlier;
            unsigned left;
            do {
                earlier = steps;
                left = 0;
                for (current = 32 * warp; current < 32 * warp + 32; ++current) {
                    if (fibers[current].done) continue;
                    ++left;
                    thread_index.x = current;
                    swapcontext(&scheduler, &fibers[current].context);
                }
            } while (steps != earlier && fault.empty());
            running += left;
        }
        if (!fault.empty()) return;
        if (running && steps == before) {
            if (copies.empty()) { fail("the threads of a block wait for one another for ever"); return; }
            const Copy next = copies.front();
            copies.pop_front();
            deliver(next);
        }
    }
    if (!copies.empty()) fail("a block ends before its copies");
}

}  // namespace emulated

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define gridDim emulated::grid_size
inline unsigned __cvta_generic_to_shared(const void* p) { return (unsigned)((const char*)p - &emulated::origin); }
inline void __syncthreads() { emulated::bar(0, emulated::fibers.size()); }
inline void __syncwarp() { emulated::meet_warp(); }
inline float __shfl_xor_sync(unsigned, float x, int distance) {
    return __uint_as_float(emulated::exchange(__float_as_uint(x), threadIdx.x % 32 ^ distance));
}
inline float __shfl_sync(unsigned, float x, int from) { return __uint_as_float(emulated::exchange(__float_as_uint(x), from)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __ballot_sync(unsigned, bool vote) {
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= emulated::exchange(vote, lane) << lane;
    return all;
}
