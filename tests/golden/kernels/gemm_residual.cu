// gemm m=64 n=128 k=64 epilogue=bias_relu_residual consumers=1 tile_n=64 stages=4
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_tensor_s2g_async_bulk_tensor_2d_global_shared__cta_tile_bulk_group(const void* __tmap, int32_t __coords0, int32_t __coords1, uint32_t __src_mem) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" :  : "l"(__tmap), "r"(__coords0), "r"(__coords1), "r"(__src_mem) : "memory");
}

__forceinline__ __device__ void tvm_builtin_cuda_warpgroup_sync(int name_bar_id) {
    asm volatile("bar.sync %0, 128;" : : "r"(name_bar_id));
}
__forceinline__ __device__ void tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta() {
  asm volatile("fence.proxy.async.shared::cta;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t __p, uint32_t __r0, uint32_t __r1, uint32_t __r2, uint32_t __r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :  : "r"(__p), "r"(__r0), "r"(__r1), "r"(__r2), "r"(__r3) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n64k16_f32_f16_f16_1_1_0_0(float& __d0, float& __d1, float& __d2, float& __d3, float& __d4, float& __d5, float& __d6, float& __d7, float& __d8, float& __d9, float& __d10, float& __d11, float& __d12, float& __d13, float& __d14, float& __d15, float& __d16, float& __d17, float& __d18, float& __d19, float& __d20, float& __d21, float& __d22, float& __d23, float& __d24, float& __d25, float& __d26, float& __d27, float& __d28, float& __d29, float& __d30, float& __d31, uint64_t __a_desc, uint64_t __b_desc, uint32_t __scale_d) {
  asm volatile("{ .reg .pred ps0; setp.ne.b32 ps0, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, ps0, 1, 1, 0, 0; }" : "+f"(__d0), "+f"(__d1), "+f"(__d2), "+f"(__d3), "+f"(__d4), "+f"(__d5), "+f"(__d6), "+f"(__d7), "+f"(__d8), "+f"(__d9), "+f"(__d10), "+f"(__d11), "+f"(__d12), "+f"(__d13), "+f"(__d14), "+f"(__d15), "+f"(__d16), "+f"(__d17), "+f"(__d18), "+f"(__d19), "+f"(__d20), "+f"(__d21), "+f"(__d22), "+f"(__d23), "+f"(__d24), "+f"(__d25), "+f"(__d26), "+f"(__d27), "+f"(__d28), "+f"(__d29), "+f"(__d30), "+f"(__d31) : "l"(__a_desc), "l"(__b_desc), "r"(__scale_d));
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
__forceinline__ __device__ void tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_init_init_shared_b64(uint32_t __addr, uint32_t __count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :  : "r"(__addr), "r"(__count) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0() {
  asm volatile("cp.async.bulk.wait_group.read 0;" :  :  : "memory");
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
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned() {
  asm volatile("wgmma.commit_group.sync.aligned;" :  :  : "memory");
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
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(uint32_t __addr, uint32_t __tx_count) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :  : "r"(__addr), "r"(__tx_count) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(uint32_t& __d, float __a, float __b) {
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(__d) : "f"(__a), "f"(__b));
}

__forceinline__ __device__ void copy_4(void* to, const void* from) {
  unsigned int value = *(const unsigned int*)from;
  __builtin_memcpy(to, &value, 4);
}
__forceinline__ __device__ void tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(uint32_t __addr, uint32_t __count, uint32_t __pred) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p mbarrier.arrive.shared.b64 _, [%0], %1; }" :  : "r"(__addr), "r"(__count), "r"(__pred) : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" :  :  : "memory");
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
extern "C" __global__ void __launch_bounds__(256, 1) main_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap v_1, const __grid_constant__ CUtensorMap v_2, const __grid_constant__ CUtensorMap v_3, half* __restrict__ _ptr);
extern "C" __global__ void __launch_bounds__(256, 1) main_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap v_1, const __grid_constant__ CUtensorMap v_2, const __grid_constant__ CUtensorMap v_3, half* __restrict__ _ptr) {
  int warp_id_in_cta = __shfl_sync((uint)4294967295, (((int)threadIdx.x) >> 5), 0, 32);
  int v_4 = ((int)blockIdx.x);
  int cse_v1 = (warp_id_in_cta >> 2);
  int v_5 = (warp_id_in_cta >> 2);
  int cse_v2 = (warp_id_in_cta & 3);
  int v_6 = (warp_id_in_cta & 3);
  int cse_v3 = (((int)threadIdx.x) & 31);
  int v_7 = (((int)threadIdx.x) & 31);
  int cse_v4 = (((int)threadIdx.x) & 127);
  int v_8 = (((int)threadIdx.x) & 127);
  ((int)blockIdx.x);
  (warp_id_in_cta >> 2);
  (warp_id_in_cta & 3);
  (((int)threadIdx.x) & 31);
  (((int)threadIdx.x) & 127);
  extern __shared__ __align__(64) uchar _ptr_1[];
  if (warp_id_in_cta < 4) {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_1)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_2)))));
        tvm_builtin_ptx_prefetch_tensormap(((void*)((unsigned long long)(&(v_3)))));
      }
    }
  }
  if ((warp_id_in_cta >> 2) == 1) {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9216]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9217]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9218]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9219]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9220]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9221]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9222]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9223]))), (uint)1);
        tvm_builtin_ptx_mbarrier_init_init_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[9224]))), (uint)1);
      }
    }
  }
  tvm_builtin_ptx_fence_mbarrier_init_mbarrier_init_release_cluster();
  tvm_builtin_cuda_cta_sync();
  tvmopt_wait_for_kernel_before();
  alignas(64) int _ptr_2[1];
  _ptr_2[0] = 0;
  alignas(64) int _ptr_3[1];
  _ptr_3[0] = 0;
  if (warp_id_in_cta < 4) {
    alignas(64) float _ptr_4[32];
    alignas(64) uint64_t _ptr_5[1];
    ptx_wgmma_encode_matrix_descriptor((&(_ptr_5[0])), (&(((half*)_ptr_1)[0])), 1, 64, 3);
    alignas(64) uint64_t _ptr_6[1];
    ptx_wgmma_encode_matrix_descriptor((&(_ptr_6[0])), (&(((half*)_ptr_1)[16384])), 1, 64, 3);
    alignas(64) int _ptr_7[1];
    _ptr_7[0] = 0;
    alignas(64) int _ptr_8[1];
    _ptr_8[0] = ((int)blockIdx.x);
    #pragma unroll 1
    while (1) {
      if (!((_ptr_8[0] < 2))) { break; }
      alignas(64) int _ptr_9[1];
      _ptr_9[0] = (_ptr_8[0] / 2);
      alignas(64) int _ptr_10[1];
      _ptr_10[0] = (_ptr_8[0] % 2);
      alignas(64) int _ptr_11[1];
      _ptr_11[0] = (_ptr_9[0] * 64);
      alignas(64) int _ptr_12[1];
      _ptr_12[0] = (_ptr_10[0] * 64);
      int cse_v6 = ((warp_id_in_cta >> 2) + 9224);
      int cse_v7 = ((warp_id_in_cta >> 2) * 64);
      int cse_v12 = (((warp_id_in_cta >> 2) * 4096) + 32768);
      if ((warp_id_in_cta & 3) < 1) {
        if (elect_one()) {
          tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();
          tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[((warp_id_in_cta >> 2) + 9224)]))), (uint)8192);
          tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[(((warp_id_in_cta >> 2) * 4096) + 32768)]))), ((void*)((unsigned long long)(&(v_3)))), _ptr_12[0], (((warp_id_in_cta >> 2) * 64) + _ptr_11[0]), tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[((warp_id_in_cta >> 2) + 9224)]))));
        }
      }
      tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 9216)])), _ptr_3[0]);
      tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();
      int cse_v8 = ((warp_id_in_cta >> 2) * 512);
              uint64_t v_ = _ptr_5[0];
              uint64_t v__1 = _ptr_5[0];
            uint2 v__2 = make_uint2((((*(uint2 *)(&(v_)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__1)))).y);
          uint64_t v__3 = *(uint64_t *)(&(v__2));
              uint64_t v__4 = _ptr_5[0];
              uint64_t v__5 = _ptr_5[0];
            uint2 v__6 = make_uint2((((*(uint2 *)(&(v__4)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__5)))).y);
          uint64_t v__7 = *(uint64_t *)(&(v__6));
        uint2 v__8 = make_uint2(((*(uint2 *)(&(v__3)))).x, ((*(uint2 *)(&(v__7)))).y);
              uint64_t v__9 = _ptr_6[0];
              uint64_t v__10 = _ptr_6[0];
            uint2 v__11 = make_uint2((((*(uint2 *)(&(v__9)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__10)))).y);
          uint64_t v__12 = *(uint64_t *)(&(v__11));
              uint64_t v__13 = _ptr_6[0];
              uint64_t v__14 = _ptr_6[0];
            uint2 v__15 = make_uint2((((*(uint2 *)(&(v__13)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__14)))).y);
          uint64_t v__16 = *(uint64_t *)(&(v__15));
        uint2 v__17 = make_uint2(((*(uint2 *)(&(v__12)))).x, ((*(uint2 *)(&(v__16)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n64k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], _ptr_4[8], _ptr_4[9], _ptr_4[10], _ptr_4[11], _ptr_4[12], _ptr_4[13], _ptr_4[14], _ptr_4[15], _ptr_4[16], _ptr_4[17], _ptr_4[18], _ptr_4[19], _ptr_4[20], _ptr_4[21], _ptr_4[22], _ptr_4[23], _ptr_4[24], _ptr_4[25], _ptr_4[26], _ptr_4[27], _ptr_4[28], _ptr_4[29], _ptr_4[30], _ptr_4[31], (*(uint64_t *)(&(v__8))), (*(uint64_t *)(&(v__17))), (bool)0);
              uint64_t v__18 = _ptr_5[0];
              uint64_t v__19 = _ptr_5[0];
            uint2 v__20 = make_uint2((((*(uint2 *)(&(v__18)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__19)))).y);
          uint64_t v__21 = *(uint64_t *)(&(v__20));
              uint64_t v__22 = _ptr_5[0];
              uint64_t v__23 = _ptr_5[0];
            uint2 v__24 = make_uint2((((*(uint2 *)(&(v__22)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__23)))).y);
          uint64_t v__25 = *(uint64_t *)(&(v__24));
        uint2 v__26 = make_uint2((((*(uint2 *)(&(v__21)))).x + (uint)2), ((*(uint2 *)(&(v__25)))).y);
              uint64_t v__27 = _ptr_6[0];
              uint64_t v__28 = _ptr_6[0];
            uint2 v__29 = make_uint2((((*(uint2 *)(&(v__27)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__28)))).y);
          uint64_t v__30 = *(uint64_t *)(&(v__29));
              uint64_t v__31 = _ptr_6[0];
              uint64_t v__32 = _ptr_6[0];
            uint2 v__33 = make_uint2((((*(uint2 *)(&(v__31)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__32)))).y);
          uint64_t v__34 = *(uint64_t *)(&(v__33));
        uint2 v__35 = make_uint2((((*(uint2 *)(&(v__30)))).x + (uint)2), ((*(uint2 *)(&(v__34)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n64k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], _ptr_4[8], _ptr_4[9], _ptr_4[10], _ptr_4[11], _ptr_4[12], _ptr_4[13], _ptr_4[14], _ptr_4[15], _ptr_4[16], _ptr_4[17], _ptr_4[18], _ptr_4[19], _ptr_4[20], _ptr_4[21], _ptr_4[22], _ptr_4[23], _ptr_4[24], _ptr_4[25], _ptr_4[26], _ptr_4[27], _ptr_4[28], _ptr_4[29], _ptr_4[30], _ptr_4[31], (*(uint64_t *)(&(v__26))), (*(uint64_t *)(&(v__35))), (uint)1);
              uint64_t v__36 = _ptr_5[0];
              uint64_t v__37 = _ptr_5[0];
            uint2 v__38 = make_uint2((((*(uint2 *)(&(v__36)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__37)))).y);
          uint64_t v__39 = *(uint64_t *)(&(v__38));
              uint64_t v__40 = _ptr_5[0];
              uint64_t v__41 = _ptr_5[0];
            uint2 v__42 = make_uint2((((*(uint2 *)(&(v__40)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__41)))).y);
          uint64_t v__43 = *(uint64_t *)(&(v__42));
        uint2 v__44 = make_uint2((((*(uint2 *)(&(v__39)))).x + (uint)4), ((*(uint2 *)(&(v__43)))).y);
              uint64_t v__45 = _ptr_6[0];
              uint64_t v__46 = _ptr_6[0];
            uint2 v__47 = make_uint2((((*(uint2 *)(&(v__45)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__46)))).y);
          uint64_t v__48 = *(uint64_t *)(&(v__47));
              uint64_t v__49 = _ptr_6[0];
              uint64_t v__50 = _ptr_6[0];
            uint2 v__51 = make_uint2((((*(uint2 *)(&(v__49)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__50)))).y);
          uint64_t v__52 = *(uint64_t *)(&(v__51));
        uint2 v__53 = make_uint2((((*(uint2 *)(&(v__48)))).x + (uint)4), ((*(uint2 *)(&(v__52)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n64k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], _ptr_4[8], _ptr_4[9], _ptr_4[10], _ptr_4[11], _ptr_4[12], _ptr_4[13], _ptr_4[14], _ptr_4[15], _ptr_4[16], _ptr_4[17], _ptr_4[18], _ptr_4[19], _ptr_4[20], _ptr_4[21], _ptr_4[22], _ptr_4[23], _ptr_4[24], _ptr_4[25], _ptr_4[26], _ptr_4[27], _ptr_4[28], _ptr_4[29], _ptr_4[30], _ptr_4[31], (*(uint64_t *)(&(v__44))), (*(uint64_t *)(&(v__53))), (uint)1);
              uint64_t v__54 = _ptr_5[0];
              uint64_t v__55 = _ptr_5[0];
            uint2 v__56 = make_uint2((((*(uint2 *)(&(v__54)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__55)))).y);
          uint64_t v__57 = *(uint64_t *)(&(v__56));
              uint64_t v__58 = _ptr_5[0];
              uint64_t v__59 = _ptr_5[0];
            uint2 v__60 = make_uint2((((*(uint2 *)(&(v__58)))).x + ((uint)(((warp_id_in_cta >> 2) * 512) + (_ptr_2[0] * 512)))), ((*(uint2 *)(&(v__59)))).y);
          uint64_t v__61 = *(uint64_t *)(&(v__60));
        uint2 v__62 = make_uint2((((*(uint2 *)(&(v__57)))).x + (uint)6), ((*(uint2 *)(&(v__61)))).y);
              uint64_t v__63 = _ptr_6[0];
              uint64_t v__64 = _ptr_6[0];
            uint2 v__65 = make_uint2((((*(uint2 *)(&(v__63)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__64)))).y);
          uint64_t v__66 = *(uint64_t *)(&(v__65));
              uint64_t v__67 = _ptr_6[0];
              uint64_t v__68 = _ptr_6[0];
            uint2 v__69 = make_uint2((((*(uint2 *)(&(v__67)))).x + ((uint)(_ptr_2[0] * 512))), ((*(uint2 *)(&(v__68)))).y);
          uint64_t v__70 = *(uint64_t *)(&(v__69));
        uint2 v__71 = make_uint2((((*(uint2 *)(&(v__66)))).x + (uint)6), ((*(uint2 *)(&(v__70)))).y);
      tvm_builtin_ptx_wgmma_f16_ss_mma_async_sync_aligned_m64n64k16_f32_f16_f16_1_1_0_0(_ptr_4[0], _ptr_4[1], _ptr_4[2], _ptr_4[3], _ptr_4[4], _ptr_4[5], _ptr_4[6], _ptr_4[7], _ptr_4[8], _ptr_4[9], _ptr_4[10], _ptr_4[11], _ptr_4[12], _ptr_4[13], _ptr_4[14], _ptr_4[15], _ptr_4[16], _ptr_4[17], _ptr_4[18], _ptr_4[19], _ptr_4[20], _ptr_4[21], _ptr_4[22], _ptr_4[23], _ptr_4[24], _ptr_4[25], _ptr_4[26], _ptr_4[27], _ptr_4[28], _ptr_4[29], _ptr_4[30], _ptr_4[31], (*(uint64_t *)(&(v__62))), (*(uint64_t *)(&(v__71))), (uint)1);
      tvm_builtin_ptx_wgmma_commit_group_commit_group_sync_aligned();
      tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_1();
      _ptr_2[0] = (_ptr_2[0] + 1);
      if (4 <= _ptr_2[0]) {
        _ptr_2[0] = 0;
        _ptr_3[0] = (_ptr_3[0] ^ 1);
      }
      tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_0();
      tvm_builtin_ptx_mbarrier_arrive_arrive_shared_b64_pred(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(((_ptr_2[0] < 1) ? (_ptr_2[0] + 3) : (_ptr_2[0] - 1)) + 9220)]))), (uint)1, ((((int)threadIdx.x) & 127) < 1));
      int v_9 = (((warp_id_in_cta >> 2) * 64) + _ptr_11[0]);
      tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr_1)[((warp_id_in_cta >> 2) + 9224)])), _ptr_7[0]);
      _ptr_7[0] = (_ptr_7[0] ^ 1);
      alignas(64) uint _ptr_13[4];
      alignas(64) half _ptr_14[2];
      int cse_v5 = (warp_id_in_cta * 1024);
      int cse_v9 = ((((int)threadIdx.x) & 31) / 4);
      int cse_v13 = (((((int)threadIdx.x) & 31) % 4) * 2);
      int cse_v14 = ((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64));
      int cse_v16 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((0 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_14[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((0 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_15[2];
      copy_4((&(_ptr_15[0])), (&(_ptr[((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0])])));
      float x = (_ptr_4[1] + ((float)_ptr_15[1]));
      float x_1 = (_ptr_4[0] + ((float)_ptr_15[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_13[0], (((x < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x) + ((float)_ptr_14[1])), (((x_1 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_1) + ((float)_ptr_14[0])));
      alignas(64) half _ptr_16[2];
      copy_4((&(_ptr_16[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((0 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_17[2];
      copy_4((&(_ptr_17[0])), (&(_ptr[((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0])])));
      float x_2 = (_ptr_4[3] + ((float)_ptr_17[1]));
      float x_3 = (_ptr_4[2] + ((float)_ptr_17[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_13[1], (((x_2 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_2) + ((float)_ptr_16[1])), (((x_3 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_3) + ((float)_ptr_16[0])));
      alignas(64) half _ptr_18[2];
      int cse_v17 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((1 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_18[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((1 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_19[2];
      copy_4((&(_ptr_19[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 8)])));
      float x_4 = (_ptr_4[5] + ((float)_ptr_19[1]));
      float x_5 = (_ptr_4[4] + ((float)_ptr_19[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_13[2], (((x_4 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_4) + ((float)_ptr_18[1])), (((x_5 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_5) + ((float)_ptr_18[0])));
      alignas(64) half _ptr_20[2];
      copy_4((&(_ptr_20[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((1 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_21[2];
      copy_4((&(_ptr_21[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 8)])));
      float x_6 = (_ptr_4[7] + ((float)_ptr_21[1]));
      float x_7 = (_ptr_4[6] + ((float)_ptr_21[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_13[3], (((x_6 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_6) + ((float)_ptr_20[1])), (((x_7 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_7) + ((float)_ptr_20[0])));
      int cse_v10 = ((((int)threadIdx.x) & 31) / 16);
      int cse_v11 = ((((int)threadIdx.x) & 31) % 8);
      int cse_v15 = ((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) % 16) * 64));
      tvm_builtin_ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) % 16) * 64)) + ((((((int)threadIdx.x) & 31) / 16) ^ ((((int)threadIdx.x) & 31) % 8)) * 8)) + 32768)]))), _ptr_13[0], _ptr_13[1], _ptr_13[2], _ptr_13[3]);
      alignas(64) uint _ptr_22[4];
      alignas(64) half _ptr_23[2];
      int cse_v18 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((2 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_23[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((2 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_24[2];
      copy_4((&(_ptr_24[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 16)])));
      float x_8 = (_ptr_4[9] + ((float)_ptr_24[1]));
      float x_9 = (_ptr_4[8] + ((float)_ptr_24[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_22[0], (((x_8 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_8) + ((float)_ptr_23[1])), (((x_9 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_9) + ((float)_ptr_23[0])));
      alignas(64) half _ptr_25[2];
      copy_4((&(_ptr_25[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((2 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_26[2];
      copy_4((&(_ptr_26[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 16)])));
      float x_10 = (_ptr_4[11] + ((float)_ptr_26[1]));
      float x_11 = (_ptr_4[10] + ((float)_ptr_26[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_22[1], (((x_10 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_10) + ((float)_ptr_25[1])), (((x_11 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_11) + ((float)_ptr_25[0])));
      alignas(64) half _ptr_27[2];
      int cse_v19 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((3 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_27[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((3 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_28[2];
      copy_4((&(_ptr_28[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 24)])));
      float x_12 = (_ptr_4[13] + ((float)_ptr_28[1]));
      float x_13 = (_ptr_4[12] + ((float)_ptr_28[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_22[2], (((x_12 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_12) + ((float)_ptr_27[1])), (((x_13 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_13) + ((float)_ptr_27[0])));
      alignas(64) half _ptr_29[2];
      copy_4((&(_ptr_29[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((3 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_30[2];
      copy_4((&(_ptr_30[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 24)])));
      float x_14 = (_ptr_4[15] + ((float)_ptr_30[1]));
      float x_15 = (_ptr_4[14] + ((float)_ptr_30[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_22[3], (((x_14 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_14) + ((float)_ptr_29[1])), (((x_15 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_15) + ((float)_ptr_29[0])));
      tvm_builtin_ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) % 16) * 64)) + (((((((int)threadIdx.x) & 31) / 16) + 2) ^ ((((int)threadIdx.x) & 31) % 8)) * 8)) + 32768)]))), _ptr_22[0], _ptr_22[1], _ptr_22[2], _ptr_22[3]);
      alignas(64) uint _ptr_31[4];
      alignas(64) half _ptr_32[2];
      int cse_v20 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((4 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_32[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((4 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_33[2];
      copy_4((&(_ptr_33[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 32)])));
      float x_16 = (_ptr_4[17] + ((float)_ptr_33[1]));
      float x_17 = (_ptr_4[16] + ((float)_ptr_33[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_31[0], (((x_16 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_16) + ((float)_ptr_32[1])), (((x_17 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_17) + ((float)_ptr_32[0])));
      alignas(64) half _ptr_34[2];
      copy_4((&(_ptr_34[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((4 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_35[2];
      copy_4((&(_ptr_35[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 32)])));
      float x_18 = (_ptr_4[19] + ((float)_ptr_35[1]));
      float x_19 = (_ptr_4[18] + ((float)_ptr_35[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_31[1], (((x_18 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_18) + ((float)_ptr_34[1])), (((x_19 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_19) + ((float)_ptr_34[0])));
      alignas(64) half _ptr_36[2];
      int cse_v21 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((5 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_36[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((5 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_37[2];
      copy_4((&(_ptr_37[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 40)])));
      float x_20 = (_ptr_4[21] + ((float)_ptr_37[1]));
      float x_21 = (_ptr_4[20] + ((float)_ptr_37[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_31[2], (((x_20 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_20) + ((float)_ptr_36[1])), (((x_21 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_21) + ((float)_ptr_36[0])));
      alignas(64) half _ptr_38[2];
      copy_4((&(_ptr_38[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((5 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_39[2];
      copy_4((&(_ptr_39[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 40)])));
      float x_22 = (_ptr_4[23] + ((float)_ptr_39[1]));
      float x_23 = (_ptr_4[22] + ((float)_ptr_39[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_31[3], (((x_22 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_22) + ((float)_ptr_38[1])), (((x_23 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_23) + ((float)_ptr_38[0])));
      tvm_builtin_ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) % 16) * 64)) + (((((((int)threadIdx.x) & 31) / 16) + 4) ^ ((((int)threadIdx.x) & 31) % 8)) * 8)) + 32768)]))), _ptr_31[0], _ptr_31[1], _ptr_31[2], _ptr_31[3]);
      alignas(64) uint _ptr_40[4];
      alignas(64) half _ptr_41[2];
      int cse_v22 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((6 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_41[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((6 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_42[2];
      copy_4((&(_ptr_42[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 48)])));
      float x_24 = (_ptr_4[25] + ((float)_ptr_42[1]));
      float x_25 = (_ptr_4[24] + ((float)_ptr_42[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_40[0], (((x_24 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_24) + ((float)_ptr_41[1])), (((x_25 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_25) + ((float)_ptr_41[0])));
      alignas(64) half _ptr_43[2];
      copy_4((&(_ptr_43[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((6 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_44[2];
      copy_4((&(_ptr_44[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 48)])));
      float x_26 = (_ptr_4[27] + ((float)_ptr_44[1]));
      float x_27 = (_ptr_4[26] + ((float)_ptr_44[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_40[1], (((x_26 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_26) + ((float)_ptr_43[1])), (((x_27 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_27) + ((float)_ptr_43[0])));
      alignas(64) half _ptr_45[2];
      int cse_v23 = ((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((7 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2));
      copy_4((&(_ptr_45[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((7 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 32768)])));
      alignas(64) half _ptr_46[2];
      copy_4((&(_ptr_46[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 56)])));
      float x_28 = (_ptr_4[29] + ((float)_ptr_46[1]));
      float x_29 = (_ptr_4[28] + ((float)_ptr_46[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_40[2], (((x_28 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_28) + ((float)_ptr_45[1])), (((x_29 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_29) + ((float)_ptr_45[0])));
      alignas(64) half _ptr_47[2];
      copy_4((&(_ptr_47[0])), (&(((half*)_ptr_1)[(((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) / 4) * 64)) + ((7 ^ ((((int)threadIdx.x) & 31) / 4)) * 8)) + (((((int)threadIdx.x) & 31) % 4) * 2)) + 33280)])));
      alignas(64) half _ptr_48[2];
      copy_4((&(_ptr_48[0])), (&(_ptr[(((((((int)threadIdx.x) & 31) % 4) * 2) + _ptr_12[0]) + 56)])));
      float x_30 = (_ptr_4[31] + ((float)_ptr_48[1]));
      float x_31 = (_ptr_4[30] + ((float)_ptr_48[0]));
      tvm_builtin_ptx_cvt_f16x2_f32_rn_f16x2_f32(_ptr_40[3], (((x_30 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_30) + ((float)_ptr_47[1])), (((x_31 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : x_31) + ((float)_ptr_47[0])));
      tvm_builtin_ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((((warp_id_in_cta * 1024) + (((((int)threadIdx.x) & 31) % 16) * 64)) + (((((((int)threadIdx.x) & 31) / 16) + 6) ^ ((((int)threadIdx.x) & 31) % 8)) * 8)) + 32768)]))), _ptr_40[0], _ptr_40[1], _ptr_40[2], _ptr_40[3]);
      tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();
      tvm_builtin_cuda_warpgroup_sync(((warp_id_in_cta >> 2) + 1));
      if ((warp_id_in_cta & 3) < 1) {
        if (elect_one()) {
          tvm_builtin_ptx_cp_async_bulk_tensor_s2g_async_bulk_tensor_2d_global_shared__cta_tile_bulk_group(((void*)((unsigned long long)(&(v_2)))), _ptr_12[0], (((warp_id_in_cta >> 2) * 64) + _ptr_11[0]), tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[(((warp_id_in_cta >> 2) * 4096) + 32768)]))));
          tvm_builtin_ptx_cp_async_bulk_commit_group_async_bulk_commit_group();
        }
      }
      _ptr_8[0] = (_ptr_8[0] + 2);
    }
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        tvm_builtin_ptx_cp_async_bulk_wait_group_async_bulk_wait_group_read_0();
      }
    }
  } else {
    if ((warp_id_in_cta & 3) < 1) {
      if (elect_one()) {
        alignas(64) int _ptr_49[1];
        _ptr_49[0] = ((int)blockIdx.x);
        #pragma unroll 1
        while (1) {
          if (!((_ptr_49[0] < 2))) { break; }
          alignas(64) int _ptr_50[1];
          _ptr_50[0] = (_ptr_49[0] / 2);
          alignas(64) int _ptr_51[1];
          _ptr_51[0] = (_ptr_49[0] % 2);
          alignas(64) int _ptr_52[1];
          _ptr_52[0] = (_ptr_50[0] * 64);
          alignas(64) int _ptr_53[1];
          _ptr_53[0] = (_ptr_51[0] * 64);
          tvm_builtin_cuda_mbarrier_wait((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 9220)])), (_ptr_3[0] ^ 1));
          tvm_builtin_ptx_mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64(tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 9216)]))), (uint)16384);
          tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[(_ptr_2[0] * 4096)]))), ((void*)((unsigned long long)(&(v)))), 0, _ptr_52[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 9216)]))));
          tvm_builtin_ptx_cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_2d_shared__cluster_global_mbarrier__complete_tx__bytes(tvm_builtin_cuda_cvta_generic_to_shared((&(((half*)_ptr_1)[((_ptr_2[0] * 4096) + 16384)]))), ((void*)((unsigned long long)(&(v_1)))), 0, _ptr_53[0], tvm_builtin_cuda_cvta_generic_to_shared((&(((uint64_t*)_ptr_1)[(_ptr_2[0] + 9216)]))));
          _ptr_2[0] = (_ptr_2[0] + 1);
          if (4 <= _ptr_2[0]) {
            _ptr_2[0] = 0;
            _ptr_3[0] = (_ptr_3[0] ^ 1);
          }
          _ptr_49[0] = (_ptr_49[0] + 2);
        }
      }
    }
  }
}

