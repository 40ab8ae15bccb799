"""Run by an AArch64 Python under QEMU: an RPC server on loopback that serves until it is ended.

``tvm.rpc.Server`` would start ``sys.executable`` as another process, which only the emulator can.
"""

import sys
import time

from tvm.rpc.server import PopenRPCServerState

if __name__ == "__main__":
    tracker, key = int(sys.argv[1]), sys.argv[2]
    PopenRPCServerState("127.0.0.1", 9700, 9900, tracker_addr=("127.0.0.1", tracker), key=key)
    while True:
        time.sleep(1)
