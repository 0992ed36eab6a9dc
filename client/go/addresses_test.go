package wattwise

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

func TestAddressesAreRead(t *testing.T) {
	cases := map[string]destination{
		"localhost:50051":                {target: "localhost:50051", servers: []string{"localhost:50051"}},
		"[::1]:50051":                    {target: "[::1]:50051", servers: []string{"[::1]:50051"}},
		"ipv4:10.0.0.1:1":                {target: "10.0.0.1:1", servers: []string{"10.0.0.1:1"}},
		"dns:///service:1":               {target: "dns:///service:1", servers: []string{"service:1"}, name: true},
		"dns:service:1":                  {target: "dns:///service:1", servers: []string{"service:1"}, name: true},
		"dns://10.0.0.53/service:1":      {target: "dns://10.0.0.53/service:1", servers: []string{"dns://10.0.0.53/service:1"}},
		"unix:/run/wattwise.sock":        {target: "unix:/run/wattwise.sock"},
		"a:1,b:65535":                    {target: "a:1", servers: []string{"a:1", "b:65535"}},
		"ipv4:10.0.0.1:1,10.0.0.2:2":     {target: "10.0.0.1:1", servers: []string{"10.0.0.1:1", "10.0.0.2:2"}},
		"ipv6:[fd00::1]:1,[fd00::2]:2":   {target: "[fd00::1]:1", servers: []string{"[fd00::1]:1", "[fd00::2]:2"}},
		"10.0.0.1:1,[fd00::2]:2,other:3": {target: "10.0.0.1:1", servers: []string{"10.0.0.1:1", "[fd00::2]:2", "other:3"}},
	}
	for address, expected := range cases {
		found, err := parseAddress(address)
		same := found.target == expected.target && found.name == expected.name &&
			strings.Join(found.servers, " ") == strings.Join(expected.servers, " ")
		if err != nil || !same {
			t.Errorf("%s: %+v, %v", address, found, err)
		}
	}
}

func TestMalformedAddressesAreRefusedWithTheServerThatIsWrong(t *testing.T) {
	for address, wrong := range map[string]string{
		"": "", "localhost": "localhost", ":50051": ":50051", "http://a:1": "http://a:1", "a:0": "a:0",
		"a:65536": "a:65536", "a:x": "a:x", "::1:50051": "::1:50051", "a:1,": "", "a:1,,b:1": "",
		"a:1,b": "b", "a:1, b:1": " b:1", "ipv4:host:1": "host:1", "ipv4:10.0.0.1": "10.0.0.1",
		"ipv4:10.0.0.1:1,[::1]:1": "[::1]:1", "ipv6:[::1]:1,10.0.0.1:1": "10.0.0.1:1", "dns:///": "",
		"dns:///a:1,b:1": "a:1,b:1", "a:1,dns:///b:1": "dns:///b:1",
	} {
		_, err := NewClient(address, Credentials{})
		if err == nil || !strings.Contains(err.Error(), ": '"+wrong+"' ") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestATokenStaysHereOnlyIfAllServersDo(t *testing.T) {
	for address, refused := range map[string]bool{
		"localhost:1,127.0.0.1:2,[::1]:3": false, "dns:///localhost:1": false, "unix:/run/x": false,
		"localhost:1,other:1": true, "ipv4:127.0.0.1:1,10.0.0.1:1": true, "dns:///other:1": true,
		"dns://10.0.0.53/localhost:1": true,
	} {
		client, err := NewClient(address, Credentials{Token: "t"})
		if refused != (err != nil) {
			t.Errorf("%s: %v", address, err)
		}
		if client != nil {
			client.Close()
		}
	}
}

func TestEveryClientDrawsItsOwnOrder(t *testing.T) {
	found := []resolver.Address{{Addr: "a"}, {Addr: "b"}, {Addr: "c"}}
	first := map[string]int{}
	for i := 0; i < 3000; i++ {
		first[reordered(nil, found)[0].Addr]++
	}
	for _, one := range found {
		// Five standard deviations around 1000.
		if first[one.Addr] < 870 || first[one.Addr] > 1130 {
			t.Errorf("the first of the order: %v", first)
		}
	}
}

func TestALaterOrderBeginsWithTheNextServer(t *testing.T) {
	a, b, c := resolver.Address{Addr: "a"}, resolver.Address{Addr: "b"}, resolver.Address{Addr: "c"}
	names := func(addresses []resolver.Address) (text string) {
		for _, one := range addresses {
			text += one.Addr
		}
		return text
	}
	for _, each := range []struct {
		before, found []resolver.Address
		expected      string
	}{
		{[]resolver.Address{a, b, c}, []resolver.Address{a, b, c}, "bca"},
		{[]resolver.Address{a, b, c}, []resolver.Address{c, a}, "ca"},
		{[]resolver.Address{a, b}, nil, "ba"},
	} {
		if order := names(reordered(each.before, each.found)); order != each.expected {
			t.Errorf("%s instead of %s", order, each.expected)
		}
	}
	if order := names(reordered([]resolver.Address{a}, []resolver.Address{b, a})); len(order) != 2 {
		t.Errorf("a new server is missing: %s", order)
	}
}

// A server that accepts connections and never answers is passed over within two timeouts for a connection.
func TestAServerThatDoesNotAnswerIsPassedOver(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go server.Serve(listener)
	defer server.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i := 0; i < 4; i++ {
		client, err := NewClient(silent.Addr().String()+","+listener.Addr().String(), Credentials{})
		if err != nil {
			t.Fatal(err)
		}
		connection := client.channel.current()
		for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
			if !connection.WaitForStateChange(ctx, state) {
				t.Fatal("no connection to the server that answers")
			}
		}
		client.Close()
	}
}

func TestThisMachineNeedsNoProxy(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for address, loopback := range map[string]bool{
		"localhost:1": true, "LOCALHOST.:1": true, "LOCALHOST:1,127.0.0.1:1": true, "127.9.9.9:1": true, "[::1%lo]:1": true,
		"[0:0:0:0:0:0:0:1]:1": true, "[::ffff:127.0.0.1]:1": true, "unix:/run/x": true, "unix-abstract:x": true,
		"dns:///localhost:1": true, "a.localhost:1": false, "ip6-localhost:1": false, "127.1:1": false, "0:1": false,
		"0.0.0.0:1": false, "[::]:1": false, own + ":1": false,
	} {
		found, err := parseAddress(address)
		if err != nil || !found.isThisMachine() || found.isLoopback() != loopback {
			t.Errorf("%s: %v, %v, %v", address, found.isThisMachine(), found.isLoopback(), err)
		}
	}
	for _, address := range []string{"10.0.0.1:1", "localhost.example:1", "localhost:1,10.0.0.1:1", "dns://10.0.0.53/localhost:1"} {
		if found, err := parseAddress(address); err != nil || found.isThisMachine() {
			t.Errorf("%s: %v", address, err)
		}
	}
}
