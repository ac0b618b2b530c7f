// Bulk asynchronous copies into shared memory (sm_90), and the barriers that tell of their end. Beside row_norm.cuh, which comes first.

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// By one thread, before any other waits on the barrier: `publish_barriers` and a barrier of the threads lie between.
__device__ __forceinline__ void init_barrier(u64& full) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full)) : "memory");
}

__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// By one thread: the barrier's phase ends once so many bytes have come.
__device__ __forceinline__ void expect(u64& full, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_in(char* to, const char* from, u32 bytes, u64& full) {
    if constexpr (LEAVES)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                     ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(&full)), "l"(leaving()) : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(&full)) : "memory");
}

__device__ __forceinline__ void wait_for(u64& full, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(&full)), "r"(parity) : "memory");
}
