from __future__ import annotations

import errno
import os
import socket
import threading

import paramiko
import pytest

from ckptstore.storage import page_cache


@pytest.fixture(autouse=True)
def _unknown_disks():
    """How fast this machine's disk is at the moment changes no test."""
    page_cache._DISKS.clear()


@pytest.fixture
def no_hard_links(monkeypatch):
    """A file system such as FAT, as far as this process can tell."""

    def link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)


class Anybody(paramiko.ServerInterface):  # type: ignore[misc]
    """Lets everybody in."""

    def check_auth_password(self, username, password):
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED


class Folder(paramiko.SFTPServerInterface):  # type: ignore[misc]
    """The files below a root, for reading."""

    def __init__(self, server, root):
        super().__init__(server)
        self.root = root

    def at(self, path):
        return self.root / path.lstrip("/")

    def list_folder(self, path):
        try:
            return [paramiko.SFTPAttributes.from_stat(entry.stat(), entry.name) for entry in os.scandir(self.at(path))]
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)

    def stat(self, path):
        try:
            return paramiko.SFTPAttributes.from_stat(self.at(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)

    lstat = stat

    def open(self, path, flags, attr):
        handle = paramiko.SFTPHandle(flags)
        try:
            handle.readfile = self.at(path).open("rb")
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)
        return handle


@pytest.fixture
def sftp_port(tmp_path):
    """The port on 127.0.0.1 of an SFTP server that serves `tmp_path`."""
    key, transports = paramiko.ECDSAKey.generate(), []

    def accept(listening):
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Folder, tmp_path)
            transport.start_server(server=Anybody())
            transports.append(transport)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, args=(listening,))
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for transport in transports:
            transport.close()
