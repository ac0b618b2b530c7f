// Device code of persistent row norms in CUDA C++: a block works on one row after another while the copy engine fetches the next rows.
//
// Bulk asynchronous copies (sm_90) fill a ring of STAGES slots in shared memory, so the rows in flight take no registers and do not depend
// on how many warps are resident. Values that rows share (weights, modulations) stay in registers until a row needs others.
//
// Macros beside those of row_norm.cuh, where THREADS is 32 * WARPS:
//
//   STAGES           slots of the ring, which lies in dynamic shared memory; 0: each lane loads its share of the row itself
//   STREAM_ITEMS     bytes of an element of each tensor whose rows the ring holds, separated by commas: x, and what else has a row for
//                    every row of x; 0: not there
//   MIN_BLOCKS       blocks resident per multiprocessor
//   ALIGNED          1: every row of these tensors starts on 16 bytes (needed with STAGES)
//   SHARED_ALIGNED   1: every row of values that rows share does
//   SINGLE           1: every block has one row, so that there is no loop
//   PIPELINED        1: a block takes up its next row between a row's sums and its result (see in_pipeline); 0 where it is not defined
//   LINES            1: copies take whole lines of memory (see LINE); 0 where it is not defined
//   COMBINED         1: weights, biases and modulations are put together, into what a row is multiplied by and what is added (see Line)

#ifndef LINES
#define LINES 0
#endif
#ifndef PIPELINED
#define PIPELINED 0
#endif

#include "row_norm.cuh"
#include "kept_row.cuh"
#include "bulk_copies.cuh"

#if __CUDA_ARCH__ >= 900
constexpr bool BULK = STAGES > 0;
#else
constexpr bool BULK = false;
#endif
constexpr int SLOTS = BULK ? STAGES : 1;
constexpr int ROW_BYTES = D * ITEM;
constexpr int ASKING = LANES - 32;  // the lane that asks for rows: of the last warp, which may hold fewer vectors than others

// Slots that are filled before the values that rows share are loaded.  Loads behind copies of many rows wait for all of these.
#ifdef TABLES
constexpr int FIRST_SLOTS = 1;  // of each of the block's teams
#else
constexpr int FIRST_SLOTS = SLOTS < 2 ? SLOTS : 2;
#endif

#ifndef TABLES
static_assert(GROUPS == 1, "a block works on one row at a time");
#endif
constexpr bool IN_PIPELINE = BULK && PIPELINED;
static_assert(!IN_PIPELINE || (SLOTS > 1 && WARPS > 1), "two rows are worked on at once, by warps that wait for one another");
static_assert(!BULK || ALIGNED, "bulk copies take whole vectors of 16 bytes");

// The rows of one block.  The launch's rows have `parts` parts of `part_rows` (one part without COMBINED), whose blocks alternate.  Those of
// a part take every step-th row of it; with step 1 the first `more` of them take least + 1 neighbours, the others `least`.
struct Rows {
    i64 first, end;
    int step;
    __device__ __forceinline__ Rows(i64 least, i64 more, i64 step, i64 parts, i64 part_rows)
        : first(blockIdx.x), end(first + 1), step(SINGLE ? 1 : COMBINED ? (int)step : step == 1 ? 1 : gridDim.x) {
        if constexpr (SINGLE) return;
        const u32 place = !COMBINED || parts == 1 ? blockIdx.x : blockIdx.x / (u32)parts;
        const u32 begin = COMBINED ? (blockIdx.x - place * (u32)parts) * (u32)part_rows : 0;
        first = begin + (step == 1 ? place * (u32)least + min(place, (u32)more) : place);
        end = step == 1 ? first + least + (place < (u32)more) : begin + part_rows;
    }
};

// Bytes of a line of memory.  A row that starts or ends within one is copied more slowly than the whole lines that it lies in.  What lies
// beside it in these is copied along and never read: up to 112 bytes on either side, so no other page is touched.
constexpr u32 LINE = 128;

// Bytes of a row of the `stream`-th tensor; 0: not there.
__device__ constexpr int row_bytes(int stream) {
    constexpr int items[] = {STREAM_ITEMS};
    return D * items[stream];
}

// Bytes of the first `streams` rows of a slot.
__device__ constexpr int slot_bytes(int streams) {
    int sum = 0;
    for (int s = 0; s < streams; ++s) sum += LINES && row_bytes(s) ? (row_bytes(s) + LINE - 16 + LINE - 1) / LINE * LINE : row_bytes(s);
    return sum;
}

__device__ constexpr int count_streams() {
    constexpr int items[] = {STREAM_ITEMS};
    return sizeof(items) / sizeof(int);
}

constexpr int STREAMS = count_streams(), SLOT_BYTES = slot_bytes(STREAMS);

struct Ring {
    alignas(128) char slot[SLOTS][BULK ? SLOT_BYTES : 16];
    u64 full[SLOTS];
};

extern __shared__ __align__(128) char shared_bytes[];  // the rings

// With LINES: bytes before a slot's row of one tensor, in memory since the start of its first line, in shared memory since that of its place.
__device__ __forceinline__ u32& lead_of(int slot, int stream) {
    __shared__ u32 leads[LINES ? SLOTS * STREAMS : 1];
    return leads[slot * STREAMS + stream];
}

__device__ __forceinline__ Ring& ring_of(int group) { return ((Ring*)shared_bytes)[group]; }

// Rows of several tensors, in the block's order.  `source(stream, row)` is the address of a row.
template <class Source> struct Stream {
    Ring& ring;
    const Source& source;
    const Rows& rows;
    const int member;
    int slot = 0;
    u32 parity = 0;
    bool filled = FIRST_SLOTS == SLOTS;  // whether all slots were asked for

    __device__ __forceinline__ Stream(Ring& ring, const Source& source, const Rows& rows, int member)
        : ring(ring), source(source), rows(rows), member(member) {
        if constexpr (BULK) {
            if (member == ASKING) {
#pragma unroll
                for (int s = 0; s < SLOTS; ++s) init_barrier(ring.full[s]);
                publish_barriers();
                fill(0, FIRST_SLOTS);
            }
            __syncthreads();  // no thread may wait on a barrier before it is initialised
        }
    }

    __device__ __forceinline__ void fill(int from, int until) {  // by one thread, with the block's first rows
#pragma unroll 1
        for (int s = from; s < until && rows.first + s * rows.step < rows.end; ++s) request(s, rows.first + s * rows.step);
    }

    __device__ __forceinline__ void request(int into, i64 row) {  // by one thread
        if constexpr (LINES) {
            request_lines(into, row);
        } else {
            expect(ring.full[into], SLOT_BYTES);
            request_from<0>(into, row);
        }
    }

    template <int STREAM> __device__ __forceinline__ void request_from(int into, i64 row) {
        if constexpr (row_bytes(STREAM) > 0)
            copy_in(ring.slot[into] + slot_bytes(STREAM), source(STREAM, row), row_bytes(STREAM), ring.full[into]);
        if constexpr (STREAM + 1 < STREAMS) request_from<STREAM + 1>(into, row);
    }

    // The barrier learns the bytes last: its phase waits for that, too.
    __device__ __forceinline__ void request_lines(int into, i64 row) {
        u32 all = 0;
#pragma unroll
        for (int s = 0; s < STREAMS; ++s) {
            if (row_bytes(s) == 0) continue;
            const char* const from = source(s, row);
            const u32 lead = (u32)(u64)from % LINE, bytes = (lead + row_bytes(s) + LINE - 1) / LINE * LINE;
            lead_of(into, s) = lead;
            copy_in(ring.slot[into] + slot_bytes(s), from - lead, bytes, ring.full[into]);
            all += bytes;
        }
        expect(ring.full[into], all);
    }

    // Where a slot's row of one tensor begins in shared memory.
    template <int STREAM> __device__ __forceinline__ const char* begin(int slot) const {
        return ring.slot[slot] + slot_bytes(STREAM) + (LINES ? lead_of(slot, STREAM) : 0);
    }

    // Waits for the current row.  What the first row shares with others is loaded before.
    __device__ __forceinline__ void wait() {
        if constexpr (BULK) {
            if (!filled && member == ASKING) fill(FIRST_SLOTS, SLOTS);
            filled = true;
            wait_for(ring.full[slot], parity);
        }
    }

    // The lane's i-th vector of a slot's row of one tensor in x's dtype.
    template <int STREAM> __device__ __forceinline__ Vector vector_in(int slot, int i) const {
        const uint4 raw = *((const uint4*)begin<STREAM>(slot) + vector_of(i, member));
        return {{raw.x, raw.y, raw.z, raw.w}};
    }

    // The lane's share of the current row of one tensor in x's dtype, after `wait`.
    template <int STREAM> __device__ __forceinline__ void take(i64 row, Vector (&out)[PER_LANE]) const {
        if constexpr (!BULK) return load_row<ALIGNED>(source(STREAM, row), member, out);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (!skips(i, member)) out[i] = vector_in<STREAM>(slot, i);
    }

    // Likewise of a tensor of any dtype, and of any slot.
    template <int STREAM, int KIND, int ADDRESSING> __device__ __forceinline__ void take(i64 row, int slot, Kept<KIND, ADDRESSING>& out) const {
        constexpr int WORDS = Kept<KIND, ADDRESSING>::WORDS;
        const char* from = BULK ? begin<STREAM>(slot) : source(STREAM, row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const char* p = from + (vector_of(i, member) * WORDS + w) * 4;
                const Vector raw = BULK ? *(const Vector*)p : load_once<KIND, ALIGNED>(p);
#pragma unroll
                for (int n = 0; n < 4; ++n) out.word[i][w + n] = raw.word[n];
            }
        }
    }

    // Asks for the row after those in the ring.  Every thread has taken its share, and with several warps a block barrier has passed since.
    __device__ __forceinline__ void release(i64 row) {
        if constexpr (BULK) {
            if constexpr (WARPS == 1) __syncwarp();
            if (member == ASKING && row + SLOTS * rows.step < rows.end) request(slot, row + SLOTS * rows.step);
            advance();
        }
    }

    // On to the next row's slot.
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }

    // Asks for another row in the place of the one before `row`, which is the current one.  A block barrier has passed since that was read.
    __device__ __forceinline__ void replace(i64 row) {
        if (member == ASKING && row != rows.first && row + (SLOTS - 1) * rows.step < rows.end)
            request(slot == 0 ? SLOTS - 1 : slot - 1, row + (SLOTS - 1) * rows.step);
    }
};

constexpr bool SPREAD = COMBINED && WARPS > 6;  // of row_statistics

// Works on the block's rows, two at a time, so that no warp waits for the others' sums with nothing else to do: behind a barrier it finds the
// statistics of one row, gives its sums of the next one, and makes the first one's result, by `end(row, slot, found, turn)`, of x that is
// still in its slot.
template <class Source, class End>
__device__ __forceinline__ void in_pipeline(Stream<Source>& stream, const Rows& rows, float eps, Exchange& exchange, const End& end) {
    const auto x_in = [&](int slot) {
        return [&stream, slot](int i, float (&values)[VEC]) { unpack(stream.template vector_in<0>(slot, i), values); };
    };
    stream.wait();
    begin_statistics(x_in(stream.slot), stream.member, 0, exchange);
    int turn = 0;
    for (i64 row = rows.first; row < rows.end; row += rows.step, ++turn) {
        __syncthreads();
        stream.replace(row);
        const int slot = stream.slot;
        const Statistics found = end_statistics<SPREAD>(x_in(slot), stream.member, turn, eps, exchange);
        if (row + rows.step < rows.end) {
            stream.advance();
            stream.wait();
            begin_statistics(x_in(stream.slot), stream.member, turn + 1, exchange);
        }
        end(row, slot, found, turn);
    }
}

// Rows from that of `token` on that read the same values.
template <int ADDRESSING> __device__ __forceinline__ i64 rows_left(i64 rows_per_group, u32 token) {
    if constexpr (ADDRESSING < ROW || (ADDRESSING == OF_SAMPLE && !SAMPLES)) return (i64)1 << 40;
    if constexpr (ADDRESSING == OF_TOKEN) return 1;
    return (u32)rows_per_group - (ADDRESSING == OF_SAMPLE ? token : token % (u32)rows_per_group);
}

// A lane's share of what normalised rows are multiplied by and of what is added, in float32: made once for all rows that share weights,
// biases and modulations.  It takes fewer registers than those, and one instruction per element.
struct Line {
    float factor[PER_LANE][VEC], term[PER_LANE][VEC];

    __device__ __forceinline__ float at(int i, int e, float normalised) const { return normalised * factor[i][e] + term[i][e]; }
};

// Makes what x * weight + bias is multiplied by, and what is added, of what x is: of one vector, from element `index` on.
template <int WEIGHT_KIND, int BIAS_KIND>
__device__ __forceinline__ void fold(float (&factor)[VEC], float (&term)[VEC], const char* weight, const char* bias, int index) {
    float values[VEC];
    if constexpr (BIAS_KIND >= 0) {
        load_shared_values<BIAS_KIND, SHARED_ALIGNED>(bias, index, values);
#pragma unroll
        for (int e = 0; e < VEC; ++e) term[e] += values[e] * factor[e];
    }
    if constexpr (WEIGHT_KIND >= 0) {
        load_shared_values<WEIGHT_KIND, SHARED_ALIGNED>(weight, index, values);
#pragma unroll
        for (int e = 0; e < VEC; ++e) factor[e] *= values[e];
    }
}

// `line` for `x * weight + bias` modulated by `scale` and `shift`, of which each row is given by its address.
template <int WEIGHT_KIND, int BIAS_KIND, int SCALE_KIND, int SCALE_AT, int SHIFT_KIND, int SHIFT_AT>
__device__ __forceinline__ void combine(Line& line, const char* weight, const char* bias, const char* scale, const char* shift, int member) {
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        if (skips(i, member)) continue;
        const int index = vector_of(i, member) * VEC;
        load_modulation<SCALE_KIND, SCALE_AT, SHARED_ALIGNED>(scale, index, line.factor[i]);
        if constexpr (SHIFT_AT >= 0) load_modulation<SHIFT_KIND, SHIFT_AT, SHARED_ALIGNED>(shift, index, line.term[i]);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            line.factor[i][e] += 1.0f;
            if constexpr (SHIFT_AT < 0) line.term[i][e] = 0.0f;
        }
        fold<WEIGHT_KIND, BIAS_KIND>(line.factor[i], line.term[i], weight, bias, index);
    }
}

// The lane's i-th vector of a row, normalised and modulated: by the line, or by what it would be made of.
template <class Weights, class Biases, class Scales, class Shifts>
__device__ __forceinline__ void modulate(float (&values)[VEC], int i, const Statistics& found, const Line& line, const Weights& weights,
                                         const Biases& biases, const Scales& scales, const Shifts& shifts) {
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        values[e] = (values[e] - found.mean) * found.inverse;
        if constexpr (COMBINED) {
            values[e] = line.at(i, e, values[e]);
        } else {
            if constexpr (Weights::there()) values[e] *= weights.value(i, e);
            if constexpr (Biases::there()) values[e] += biases.value(i, e);
            values[e] = values[e] * (1.0f + scales.value(i, e)) + shifts.value(i, e);
        }
    }
}
