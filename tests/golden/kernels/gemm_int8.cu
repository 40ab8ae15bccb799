// gemm m=512 n=512 k=256 dtype=int8 out=int32 consumers=1 tile_n=64 stages=4
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(uint32_t __addr, uint32_t __tx_count) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :  : "r"(__addr), "r"(__tx_count) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_tensor_s2g_async_bulk_tensor_2d_global_shared__cta_tile_bulk_group(const void* __tmap, int32_t __coords0, int32_t __coords1, uint32_t __src_mem) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" :  : "l"(__tmap), "r"(__coords0), "r"(__coords1), "r"(__src_mem) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta() {
  asm volatile("fence.proxy.async.shared::cta;" :  :  : "memory");
}
__forceinline__ __device__ void store_pair_int32(void* p, int a, int b) { *(int2*)p = make_int2(a, b); }

__forceinline__ __device__ void tvm_builtin_cuda_warpgroup_sync(int name_bar_id) {
    asm volatile("bar.sync %0, 128;" : : "r"(name_bar_id));
}
__forceinline__ __device__ void tvm_builtin_ptx_prefetch_tensormap(const void* __addr) {
  asm volatile("prefetch.tensormap [%0];" :  : "l"(__addr) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_commit_group_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" :  : );
}

__forceinline__ __device__ unsigned int tvm_builtin_cuda_cvta_generic_to_shared(void* p) {
    return __cvta_generic_to_shared(p);
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0() {
  asm volatile("cp.async.bulk.wait_group.read 0;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_init_init_shared_b64(uint32_t __addr, uint32_t __count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :  : "r"(__addr), "r"(__count) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(uint32_t __dst_mem, const void* __tmap, int32_t __coords0, int32_t __coords1, uint32_t __mbar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :  : "r"(__dst_mem), "l"(__tmap), "r"(__coords0), "r"(__coords1), "r"(__mbar) : "memory");
}

__forceinline__ __device__ void tvm_builtin_cuda_cta_sync() {
    __syncthreads();
}

__forceinline__ __device__ void tvmopt_wait_for_kernel_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(uint32_t __addr, uint32_t __count, uint32_t __pred) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p mbarrier.arrive.shared.b64 _, [%0], %1; }" :  : "r"(__addr), "r"(__count), "r"(__pred) : "memory");
}

__forceinline__ __device__ bool elect_one() {
  unsigned one;
  asm volatile("{\n"
               ".reg .pred p;\n"
               "elect.sync _|p, 0xffffffff;\n"
               "selp.b32 %0, 1, 0, p;\n"
               "}" : "=r"(one));
  return one != 0;
}

__forceinline__ __device__ void tvm_builtin_cuda_mbarrier_wait(void* barrier, int phase) {
    unsigned int barrier_addr_int = __cvta_generic_to_shared(barrier);
    unsigned int ticks = 0x989680;
    asm volatile(
        "{\n"
        ".reg .pred                P1;\n"
        "LAB_WAIT:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, [%0], %1, %2;\n"
        "@P1                       bra.uni DONE;\n"
        "bra.uni                   LAB_WAIT;\n"
        "DONE:\n"
        "}\n"
        :: "r"(barrier_addr_int), "r"(phase), "r"(ticks) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_fence_fence_sync_aligned() {
  asm volatile("wgmma.fence.sync.aligned;" :  :  : "memory");
}

__forceinline__ __device__ void ptx_wgmma_encode_matrix_descriptor(uint64_t* desc, void* addr, int ldo, int sdo, int swizzle) {
  GmmaDescriptor _desc{};  // value-init: reading uncovered pad bits is UB

  switch (swizzle) {
    case 0: _desc.bitfield.layout_type_ = uint8_t(0); break; // No swizzle
    case 1: _desc.bitfield.layout_type_ = uint8_t(3); break; // 32B swizzle
    case 2: _desc.bitfield.layout_type_ = uint8_t(2); break; // 64B swizzle
    case 3: _desc.bitfield.layout_type_ = uint8_t(1); break; // 128B swizzle
  }

  uint32_t start_address = __cvta_generic_to_shared(addr);
  _desc.bitfield.start_address_ = static_cast<uint16_t>(start_address >> 4);

  constexpr uint8_t base_offset = 0;
  _desc.bitfield.base_offset_ = base_offset;

  _desc.bitfield.stride_byte_offset_  = static_cast<uint32_t>(sdo);
  _desc.bitfield.leading_byte_offset_ = static_cast<uint32_t>(ldo);

  *desc = (uint64_t)_desc;
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned() {
  asm volatile("wgmma.commit_group.sync.aligned;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_int_ss_mma_async_sync_aligned_m64n64k32_s32_s8_s8(uint32_t& __d0, uint32_t& __d1, uint32_t& __d2, uint32_t& __d3, uint32_t& __d4, uint32_t& __d5, uint32_t& __d6, uint32_t& __d7, uint32_t& __d8, uint32_t& __d9, uint32_t& __d10, uint32_t& __d11, uint32_t& __d12, uint32_t& __d13, uint32_t& __d14, uint32_t& __d15, uint32_t& __d16, uint32_t& __d17, uint32_t& __d18, uint32_t& __d19, uint32_t& __d20, uint32_t& __d21, uint32_t& __d22, uint32_t& __d23, uint32_t& __d24, uint32_t& __d25, uint32_t& __d26, uint32_t& __d27, uint32_t& __d28, uint32_t& __d29, uint32_t& __d30, uint32_t& __d31, uint64_t __a_desc, uint64_t __b_desc, uint32_t __scale_d) {
  asm volatile("{ .reg .pred ps0; setp.ne.b32 ps0, %34, 0; wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, ps0; }" : "+r"(__d0), "+r"(__d1), "+r"(__d2), "+r"(__d3), "+r"(__d4), "+r"(__d5), "+r"(__d6), "+r"(__d7), "+r"(__d8), "+r"(__d9), "+r"(__d10), "+r"(__d11), "+r"(__d12), "+r"(__d13), "+r"(__d14), "+r"(__d15), "+r"(__d16), "+r"(__d17), "+r"(__d18), "+r"(__d19), "+r"(__d20), "+r"(__d21), "+r"(__d22), "+r"(__d23), "+r"(__d24), "+r"(__d25), "+r"(__d26), "+r"(__d27), "+r"(__d28), "+r"(__d29), "+r"(__d30), "+r"(__d31) : "l"(__a_desc), "l"(__b_desc), "r"(__scale_d));
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" :  :  : "memory");
}
extern "C" __global__ void __launch_bounds__(256, 1) main_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap v_1, const __grid_constant__ CUtensorMap v_2);
extern "C" __global__ void __launch_bounds__(256, 1) main_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap v_1, const __grid_constant__ CUtensorMap v_2) {
  int warp_id_in_cta = __shfl_sync((uint)4294967295, (((int)threadIdx.x) >> 5), 0, 32);
  int v_3 = ((int)blockIdx.x);
  int cse_v1 = (warp_id_in_cta >> 2);
  int v_4 = (warp_id_in_cta >> 2);
  int cse_v2 = (warp_id_in_cta & 3);
  int v_5 = (warp_id_in_cta & 3);
  int cse_v3 = (((int)threadIdx.x) & 31);
  int v_6 = (((int)threadIdx.x) & 31);
  int cse_v4 = (((int)threadIdx.x) & 127);
  int v_7 = (((int)threadIdx.x) & 127);
  ((int)blockIdx.x);
  (warp_id_in_cta >> 2);
  (warp_id_in_cta & 3);
  (((int)threadIdx.x) & 31);
  (((int)threadIdx.x) & 127);
  extern __shared__ __align__(64) uchar _ptr[];
  if (warp_id_in_cta < 4) {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_1)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_2)))));
      }
    }
  }
  if ((warp_id_in_cta >> 2) == 1) {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9216]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9217]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9218]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9219]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9220]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9221]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9222]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[9223]))), (uint)1);
      }
    }
  }
  tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster();
  tvm_builtin_cuda_cta_sync();
  tvmopt_wait_for_kernel_before();
  alignas(64) int _ptr_1[1];
  _ptr_1[0] = 0;
  alignas(64) int _ptr_2[1];
  _ptr_2[0] = 0;
  if (warp_id_in_cta < 4) {
    alignas(64) uint _ptr_3[32];
    alignas(64) uint64_t _ptr_4[1];
    ptx_wgmma_encode_matrix_descriptor((&(_ptr_4[0])), (&(((signed char*)_ptr)[0])), 1, 64, 3);
    alignas(64) uint64_t _ptr_5[1];
    ptx_wgmma_encode_matrix_descriptor((&(_ptr_5[0])), (&(((signed char*)_ptr)[32768])), 1, 64, 3);
    alignas(64) int _ptr_6[1];
    _ptr_6[0] = ((int)blockIdx.x);
    #pragma unroll 1
    while (1) {
      if (!((_ptr_6[0] < 64))) { break; }
      alignas(64) int _ptr_7[1];
      _ptr_7[0] = (((_ptr_6[0] / 64) * 8) + (_ptr_6[0] % 8));
      alignas(64) int _ptr_8[1];
      _ptr_8[0] = ((_ptr_6[0] % 64) / 8);
      alignas(64) int _ptr_9[1];
      _ptr_9[0] = (_ptr_7[0] * 64);
      alignas(64) int _ptr_10[1];
      _ptr_10[0] = (_ptr_8[0] * 64);
      for (int v_8 = 0; v_8 < 2; ++v_8) {
        tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr)[(_ptr_1[0] + 9216)])), _ptr_2[0]);
        tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
        int cse_v6 = ((warp_id_in_cta >> 2) * 512);
                uint64_t v_ = _ptr_4[0];
                uint64_t v__1 = _ptr_4[0];
              uint2 v__2 = make_uint2((((*(uint2 *)(&(v_)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__1)))).y);
            uint64_t v__3 = *(uint64_t *)(&(v__2));
                uint64_t v__4 = _ptr_4[0];
                uint64_t v__5 = _ptr_4[0];
              uint2 v__6 = make_uint2((((*(uint2 *)(&(v__4)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__5)))).y);
            uint64_t v__7 = *(uint64_t *)(&(v__6));
          uint2 v__8 = make_uint2(((*(uint2 *)(&(v__3)))).x, ((*(uint2 *)(&(v__7)))).y);
                uint64_t v__9 = _ptr_5[0];
                uint64_t v__10 = _ptr_5[0];
              uint2 v__11 = make_uint2((((*(uint2 *)(&(v__9)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__10)))).y);
            uint64_t v__12 = *(uint64_t *)(&(v__11));
                uint64_t v__13 = _ptr_5[0];
                uint64_t v__14 = _ptr_5[0];
              uint2 v__15 = make_uint2((((*(uint2 *)(&(v__13)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__14)))).y);
            uint64_t v__16 = *(uint64_t *)(&(v__15));
          uint2 v__17 = make_uint2(((*(uint2 *)(&(v__12)))).x, ((*(uint2 *)(&(v__16)))).y);
        tvm_builtin_ptx_wgmma_int_ss_mma_async_sync_aligned_m64n64k32_s32_s8_s8(_ptr_3[0], _ptr_3[1], _ptr_3[2], _ptr_3[3], _ptr_3[4], _ptr_3[5], _ptr_3[6], _ptr_3[7], _ptr_3[8], _ptr_3[9], _ptr_3[10], _ptr_3[11], _ptr_3[12], _ptr_3[13], _ptr_3[14], _ptr_3[15], _ptr_3[16], _ptr_3[17], _ptr_3[18], _ptr_3[19], _ptr_3[20], _ptr_3[21], _ptr_3[22], _ptr_3[23], _ptr_3[24], _ptr_3[25], _ptr_3[26], _ptr_3[27], _ptr_3[28], _ptr_3[29], _ptr_3[30], _ptr_3[31], (*(uint64_t *)(&(v__8))), (*(uint64_t *)(&(v__17))), (0 < v_8));
                uint64_t v__18 = _ptr_4[0];
                uint64_t v__19 = _ptr_4[0];
              uint2 v__20 = make_uint2((((*(uint2 *)(&(v__18)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__19)))).y);
            uint64_t v__21 = *(uint64_t *)(&(v__20));
                uint64_t v__22 = _ptr_4[0];
                uint64_t v__23 = _ptr_4[0];
              uint2 v__24 = make_uint2((((*(uint2 *)(&(v__22)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__23)))).y);
            uint64_t v__25 = *(uint64_t *)(&(v__24));
          uint2 v__26 = make_uint2((((*(uint2 *)(&(v__21)))).x + (uint)2), ((*(uint2 *)(&(v__25)))).y);
                uint64_t v__27 = _ptr_5[0];
                uint64_t v__28 = _ptr_5[0];
              uint2 v__29 = make_uint2((((*(uint2 *)(&(v__27)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__28)))).y);
            uint64_t v__30 = *(uint64_t *)(&(v__29));
                uint64_t v__31 = _ptr_5[0];
                uint64_t v__32 = _ptr_5[0];
              uint2 v__33 = make_uint2((((*(uint2 *)(&(v__31)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__32)))).y);
            uint64_t v__34 = *(uint64_t *)(&(v__33));
          uint2 v__35 = make_uint2((((*(uint2 *)(&(v__30)))).x + (uint)2), ((*(uint2 *)(&(v__34)))).y);
        tvm_builtin_ptx_wgmma_int_ss_mma_async_sync_aligned_m64n64k32_s32_s8_s8(_ptr_3[0], _ptr_3[1], _ptr_3[2], _ptr_3[3], _ptr_3[4], _ptr_3[5], _ptr_3[6], _ptr_3[7], _ptr_3[8], _ptr_3[9], _ptr_3[10], _ptr_3[11], _ptr_3[12], _ptr_3[13], _ptr_3[14], _ptr_3[15], _ptr_3[16], _ptr_3[17], _ptr_3[18], _ptr_3[19], _ptr_3[20], _ptr_3[21], _ptr_3[22], _ptr_3[23], _ptr_3[24], _ptr_3[25], _ptr_3[26], _ptr_3[27], _ptr_3[28], _ptr_3[29], _ptr_3[30], _ptr_3[31], (*(uint64_t *)(&(v__26))), (*(uint64_t *)(&(v__35))), (uint)1);
                uint64_t v__36 = _ptr_4[0];
                uint64_t v__37 = _ptr_4[0];
              uint2 v__38 = make_uint2((((*(uint2 *)(&(v__36)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__37)))).y);
            uint64_t v__39 = *(uint64_t *)(&(v__38));
                uint64_t v__40 = _ptr_4[0];
                uint64_t v__41 = _ptr_4[0];
              uint2 v__42 = make_uint2((((*(uint2 *)(&(v__40)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__41)))).y);
            uint64_t v__43 = *(uint64_t *)(&(v__42));
          uint2 v__44 = make_uint2((((*(uint2 *)(&(v__39)))).x + (uint)4), ((*(uint2 *)(&(v__43)))).y);
                uint64_t v__45 = _ptr_5[0];
                uint64_t v__46 = _ptr_5[0];
              uint2 v__47 = make_uint2((((*(uint2 *)(&(v__45)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__46)))).y);
            uint64_t v__48 = *(uint64_t *)(&(v__47));
                uint64_t v__49 = _ptr_5[0];
                uint64_t v__50 = _ptr_5[0];
              uint2 v__51 = make_uint2((((*(uint2 *)(&(v__49)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__50)))).y);
            uint64_t v__52 = *(uint64_t *)(&(v__51));
          uint2 v__53 = make_uint2((((*(uint2 *)(&(v__48)))).x + (uint)4), ((*(uint2 *)(&(v__52)))).y);
        tvm_builtin_ptx_wgmma_int_ss_mma_async_sync_aligned_m64n64k32_s32_s8_s8(_ptr_3[0], _ptr_3[1], _ptr_3[2], _ptr_3[3], _ptr_3[4], _ptr_3[5], _ptr_3[6], _ptr_3[7], _ptr_3[8], _ptr_3[9], _ptr_3[10], _ptr_3[11], _ptr_3[12], _ptr_3[13], _ptr_3[14], _ptr_3[15], _ptr_3[16], _ptr_3[17], _ptr_3[18], _ptr_3[19], _ptr_3[20], _ptr_3[21], _ptr_3[22], _ptr_3[23], _ptr_3[24], _ptr_3[25], _ptr_3[26], _ptr_3[27], _ptr_3[28], _ptr_3[29], _ptr_3[30], _ptr_3[31], (*(uint64_t *)(&(v__44))), (*(uint64_t *)(&(v__53))), (uint)1);
                uint64_t v__54 = _ptr_4[0];
                uint64_t v__55 = _ptr_4[0];
              uint2 v__56 = make_uint2((((*(uint2 *)(&(v__54)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__55)))).y);
            uint64_t v__57 = *(uint64_t *)(&(v__56));
                uint64_t v__58 = _ptr_4[0];
                uint64_t v__59 = _ptr_4[0];
              uint2 v__60 = make_uint2((((*(uint2 *)(&(v__58)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_1[0] * 512)))), ((*(uint2 *)(&(v__59)))).y);
            uint64_t v__61 = *(uint64_t *)(&(v__60));
          uint2 v__62 = make_uint2((((*(uint2 *)(&(v__57)))).x + (uint)6), ((*(uint2 *)(&(v__61)))).y);
                uint64_t v__63 = _ptr_5[0];
                uint64_t v__64 = _ptr_5[0];
              uint2 v__65 = make_uint2((((*(uint2 *)(&(v__63)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__64)))).y);
            uint64_t v__66 = *(uint64_t *)(&(v__65));
                uint64_t v__67 = _ptr_5[0];
                uint64_t v__68 = _ptr_5[0];
              uint2 v__69 = make_uint2((((*(uint2 *)(&(v__67)))).x + ((uint)(_ptr_1[0] * 512))), ((*(uint2 *)(&(v__68)))).y);
            uint64_t v__70 = *(uint64_t *)(&(v__69));
          uint2 v__71 = make_uint2((((*(uint2 *)(&(v__66)))).x + (uint)6), ((*(uint2 *)(&(v__70)))).y);
        tvm_builtin_ptx_wgmma_int_ss_mma_async_sync_aligned_m64n64k32_s32_s8_s8(_ptr_3[0], _ptr_3[1], _ptr_3[2], _ptr_3[3], _ptr_3[4], _ptr_3[5], _ptr_3[6], _ptr_3[7], _ptr_3[8], _ptr_3[9], _ptr_3[10], _ptr_3[11], _ptr_3[12], _ptr_3[13], _ptr_3[14], _ptr_3[15], _ptr_3[16], _ptr_3[17], _ptr_3[18], _ptr_3[19], _ptr_3[20], _ptr_3[21], _ptr_3[22], _ptr_3[23], _ptr_3[24], _ptr_3[25], _ptr_3[26], _ptr_3[27], _ptr_3[28], _ptr_3[29], _ptr_3[30], _ptr_3[31], (*(uint64_t *)(&(v__62))), (*(uint64_t *)(&(v__71))), (uint)1);
        tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
        tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1();
        if (v_8 == 1) {
          tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[(((_ptr_1[0] < 1) ? (_ptr_1[0] + 3) : (_ptr_1[0] - 1)) + 9220)]))), (uint)1, ((((int)threadIdx.x) & 127) < 1));
        }
        _ptr_1[0] = (_ptr_1[0] + 1);
        if (4 <= _ptr_1[0]) {
          _ptr_1[0] = 0;
          _ptr_2[0] = (_ptr_2[0] ^ 1);
        }
      }
      tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
      tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[(((_ptr_1[0] < 1) ? (_ptr_1[0] + 3) : (_ptr_1[0] - 1)) + 9220)]))), (uint)1, ((((int)threadIdx.x) & 127) < 1));
      int cse_v7 = ((warp_id_in_cta >> 2) * 64);
      int v_9 = (((warp_id_in_cta >> 2) * 64) + _ptr_9[0]);
      if ((warp_id_in_cta & 3) < 1) {
        if (elect_one()) {
          tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();
        }
      }
      int cse_v8 = ((warp_id_in_cta >> 2) + 1);
      tvm_builtin_cuda_warpgroup_sync(((warp_id_in_cta >> 2) + 1));
      int cse_v9 = ((((int)threadIdx.x) & 31) / 4);
      int cse_v10 = (((((int)threadIdx.x) & 31) % 4) / 2);
      int cse_v11 = (((((int)threadIdx.x) & 31) % 2) * 2);
      int cse_v13 = ((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32));
      int cse_v14 = ((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2));
      int cse_v15 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[0]), ((int)_ptr_3[1]));
      int cse_v16 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[2]), ((int)_ptr_3[3]));
      int cse_v17 = ((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2));
      int cse_v20 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[4]), ((int)_ptr_3[5]));
      int cse_v21 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[6]), ((int)_ptr_3[7]));
      int cse_v18 = ((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2));
      int cse_v22 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[8]), ((int)_ptr_3[9]));
      int cse_v23 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[10]), ((int)_ptr_3[11]));
      int cse_v19 = ((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2));
      int cse_v24 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[12]), ((int)_ptr_3[13]));
      int cse_v25 = (((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640);
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[14]), ((int)_ptr_3[15]));
      tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();
      tvm_builtin_cuda_warpgroup_sync(((warp_id_in_cta >> 2) + 1));
      int cse_v12 = (((warp_id_in_cta >> 2) * 2048) + 16384);
      if ((warp_id_in_cta & 3) < 1) {
        if (elect_one()) {
          tvm_builtin_ptx_cp_async_bulk_tensor_s2g_async_bulk_tensor_2d_global_shared__cta_tile_bulk_group(((void*)((unsigned long long)(&(v_2)))), _ptr_10[0], (((warp_id_in_cta >> 2) * 64) + _ptr_9[0]), tvm_builtin_cuda_cvta_generic_to_shared((&(((int*)_ptr)[(((warp_id_in_cta >> 2) * 2048) + 16384)]))));
          tvm_builtin_ptx_cp_async_bulk_commit_group_async_bulk_commit_group();
        }
      }
      if ((warp_id_in_cta & 3) < 1) {
        if (elect_one()) {
          tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();
        }
      }
      tvm_builtin_cuda_warpgroup_sync(((warp_id_in_cta >> 2) + 1));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[16]), ((int)_ptr_3[17]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + (((((((int)threadIdx.x) & 31) % 4) / 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[18]), ((int)_ptr_3[19]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[20]), ((int)_ptr_3[21]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 2) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[22]), ((int)_ptr_3[23]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[24]), ((int)_ptr_3[25]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 4) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[26]), ((int)_ptr_3[27]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16384)])), ((int)_ptr_3[28]), ((int)_ptr_3[29]));
      store_pair_int32((&(((int*)_ptr)[(((((warp_id_in_cta * 512) + (((((int)threadIdx.x) & 31) / 4) * 32)) + ((((((((int)threadIdx.x) & 31) % 4) / 2) + 6) ^ ((((int)threadIdx.x) & 31) / 4)) * 4)) + (((((int)threadIdx.x) & 31) % 2) * 2)) + 16640)])), ((int)_ptr_3[30]), ((int)_ptr_3[31]));
      tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();
      tvm_builtin_cuda_warpgroup_sync(((warp_id_in_cta >> 2) + 1));
      if ((warp_id_in_cta & 3) < 1) {
        if (elect_one()) {
          tvm_builtin_ptx_cp_async_bulk_tensor_s2g_async_bulk_tensor_2d_global_shared__cta_tile_bulk_group(((void*)((unsigned long long)(&(v_2)))), (_ptr_10[0] + 32), (((warp_id_in_cta >> 2) * 64) + _ptr_9[0]), tvm_builtin_cuda_cvta_generic_to_shared((&(((int*)_ptr)[(((warp_id_in_cta >> 2) * 2048) + 16384)]))));
          tvm_builtin_ptx_cp_async_bulk_commit_group_async_bulk_commit_group();
        }
      }
      _ptr_6[0] = (_ptr_6[0] + 64);
    }
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();
      }
    }
  } else {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        alignas(64) int _ptr_11[1];
        _ptr_11[0] = ((int)blockIdx.x);
        #pragma unroll 1
        while (1) {
          if (!((_ptr_11[0] < 64))) { break; }
          alignas(64) int _ptr_12[1];
          _ptr_12[0] = (((_ptr_11[0] / 64) * 8) + (_ptr_11[0] % 8));
          alignas(64) int _ptr_13[1];
          _ptr_13[0] = ((_ptr_11[0] % 64) / 8);
          alignas(64) int _ptr_14[1];
          _ptr_14[0] = (_ptr_12[0] * 64);
          alignas(64) int _ptr_15[1];
          _ptr_15[0] = (_ptr_13[0] * 64);
          for (int v_10 = 0; v_10 < 2; ++v_10) {
            tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr)[(_ptr_1[0] + 9220)])), (_ptr_2[0] ^ 1));
            tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[(_ptr_1[0] + 9216)]))), (uint)16384);
            int cse_v5 = (v_10 * 128);
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((signed char*)_ptr)[(_ptr_1[0] * 8192)]))), ((void*)((unsigned long long)(&(v)))), (v_10 * 128), _ptr_14[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[(_ptr_1[0] + 9216)]))));
            tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((signed char*)_ptr)[((_ptr_1[0] * 8192) + 32768)]))), ((void*)((unsigned long long)(&(v_1)))), (v_10 * 128), _ptr_15[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr)[(_ptr_1[0] + 9216)]))));
            _ptr_1[0] = (_ptr_1[0] + 1);
            if (4 <= _ptr_1[0]) {
              _ptr_1[0] = 0;
              _ptr_2[0] = (_ptr_2[0] ^ 1);
            }
          }
          _ptr_11[0] = (_ptr_11[0] + 64);
        }
      }
    }
  }
}

