// Four floats, loaded at once where ALIGNED.
#if ALIGNED
struct __align__(16) vector { float part[4]; };
#else
struct vector { float part[4]; };
#endif

__device__ inline float total(vector v) { return v.part[0] + v.part[1] + v.part[2] + v.part[3]; }
__device__ inline vector scaled(vector v, float by) {
    for (int i = 0; i < 4; ++i) v.part[i] *= by;
    return v;
}
