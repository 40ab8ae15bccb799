"""Serve TVM RPC on loopback until killed; an AArch64 Python under QEMU runs this file.

``tvm.rpc.Server`` would start ``sys.executable`` as a process, which only the emulator can run.
"""

import sys
import time

from tvm.rpc.server import PopenRPCServerState

if __name__ == "__main__":
    tracker, key = int(sys.argv[1]), sys.argv[2]
    PopenRPCServerState("127.0.0.1", 9700, 9900, tracker_addr=("127.0.0.1", tracker), key=key)
    while True:
        time.sleep(1)
