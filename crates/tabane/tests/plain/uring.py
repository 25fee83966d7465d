"""connect() by io_uring, without a library: one entry submitted, one completion awaited."""
import ctypes, mmap, os, socket, struct

SETUP, ENTER, GETEVENTS, OP_CONNECT = 425, 426, 1, 16
AT_SQ, AT_CQ, AT_SQES = 0, 0x8000000, 0x10000000
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "io_uring")
    return result

def name_of(address, port):
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        return struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(port), 0, packed, 0)
    packed = socket.inet_pton(socket.AF_INET, address)
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), packed)

def connect(s, address, port):
    """What the completion says: 0 or an error's number. OSError where the kernel has no io_uring."""
    params = ctypes.create_string_buffer(120)
    ring = call(SETUP, ctypes.c_uint(4), params)
    try:
        sq_entries, cq_entries = struct.unpack_from("=II", params, 0)
        _, sq_tail, sq_mask, _, _, _, sq_array = struct.unpack_from("=7I", params, 40)
        cq_head, _, cq_mask, _, _, cqes = struct.unpack_from("=6I", params, 80)
        sq = mmap.mmap(ring, sq_array + 4 * sq_entries, offset=AT_SQ)
        cq = mmap.mmap(ring, cqes + 16 * cq_entries, offset=AT_CQ)
        sqes = mmap.mmap(ring, 64 * sq_entries, offset=AT_SQES)
        name = ctypes.create_string_buffer(name_of(address, port))
        entry = struct.pack(
            "=BBHiQQ", OP_CONNECT, 0, 0, s.fileno(), len(name) - 1, ctypes.addressof(name)
        )
        sqes[:len(entry)] = entry
        struct.pack_into("=I", sq, sq_array, 0)
        struct.pack_into("=I", sq, sq_tail, 1)
        call(ENTER, ring, 1, 1, GETEVENTS, None, ctypes.c_size_t(0))
        _, result, _ = struct.unpack_from("=QiI", cq, cqes)
        return -result
    finally:
        os.close(ring)
